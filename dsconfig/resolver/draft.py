"""The config during resolution, with ledger and diagnostics."""

from collections.abc import Mapping
from typing import Any

from dsconfig.facts import Facts
from dsconfig.lazy_imports import lazy_imports
from dsconfig.report import Diagnostic
from dsconfig.resolver.resolution import LedgerEntry, Source
from dsconfig.runtimes.base import AUTO, Runtime
from dsconfig.runtimes.config_view import ConfigView
from dsconfig.runtimes.replay import Failure
from dsconfig.schema.key_index import name_in_block
from dsconfig.schema.paths import KeyPath
from dsconfig.source import Document
from dsconfig.source.pointer import ABSENT, copied, is_block, walk

with lazy_imports():
    from dsconfig.checks import registry
    from dsconfig.source import strict


class Draft(ConfigView):
    """Copy of the document's values that is resolved step by step.

    Only "auto" and missing values are written; the order of keys is kept, and new keys are
    appended. Cached properties of the view (``reading``, ``stage``) do not follow changes.
    """

    def __init__(self, document: Document, facts: Facts, runtime: Runtime) -> None:
        own = runtime.reads_hjson
        values = copied(document.value) if own else strict.as_json_reads(document)
        super().__init__(values, facts, runtime.version)
        self.document = document
        self.runtime = runtime
        self.ledger: list[LedgerEntry] = []
        self.findings: list[Diagnostic] = []
        self.failure: Failure | None = None
        self.failure_after: Failure | None = None
        """Errors at which another program stops, or DeepSpeed after it."""
        self.unresolved: set[KeyPath] = set()
        """Paths left "auto"; a finding at another path reports the reason."""
        self.searches: dict[KeyPath, dict[str, Any]] = {}
        """Search results by path."""

    def explicit(self, path: KeyPath) -> bool:
        """Return whether the config sets a value other than null and "auto"."""
        return self.is_set(path) and not self.is_auto(path)

    def takes(self, path: KeyPath) -> bool:
        """Return whether the parent of a path is a block, null or missing."""
        outer = path.parent
        return not outer or self.given(outer) in (ABSENT, None) or is_block(self.given(outer))

    def set(self, path: KeyPath, value: Any, source: Source, rule: str, **inputs: Any) -> None:
        """Set a value and record the reason. Missing blocks are created."""
        place = self.config
        for block in path.parent:
            if place.get(block) is None:
                place[block] = {}
            place = place[block]
        written = name_in_block(path, place)
        place[written] = value
        self.note(path.parent / written, value, source, rule, **inputs)

    def note(self, path: KeyPath, value: Any, source: Source, rule: str, **inputs: Any) -> None:
        """Record the reason for a value that is already set."""
        self.ledger.append(LedgerEntry(path.pointer, value, source, rule, inputs))

    def report(self, code: str, path: KeyPath, message: str, help: str) -> None:
        """Report a finding at a path (the root: the file)."""
        found = registry.declared(code)
        pointer = path.pointer
        self.findings.append(
            Diagnostic(
                code=code,
                name=found.name,
                effect=found.effect,
                pointer=pointer,
                range=self.document.range(pointer) if self.document.spans else None,
                runtimes=(self.runtime.name,),
                message=message,
                help=help,
            )
        )

    def missing(self, path: KeyPath, message: str, remedy: str) -> None:
        """Report a value that needs a missing fact; ``remedy`` names the flag."""
        self.report("DSC150", path, message, remedy)


def auto_paths(config: Mapping[str, Any]) -> list[KeyPath]:
    """Return the paths of all "auto" values, in the order of the config."""
    return [path for path, value in walk(config) if isinstance(value, str) and value == AUTO]
