"""A config as it is in an editor: checked like ``dsconfig validate FILE``, from unsaved text."""

from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from dsconfig import api, examination, opening
from dsconfig.cost.estimate import Estimate
from dsconfig.facts import Facts, gathering
from dsconfig.facts.request import FactsRequest
from dsconfig.project import assumed_facts, search, settings
from dsconfig.project.errors import usage
from dsconfig.project.neighbours import Neighbours
from dsconfig.project.validator import Validator
from dsconfig.report import FileReport
from dsconfig.resolver.resolution import LedgerEntry, Resolution
from dsconfig.runtimes.base import Runtime, runtime_of
from dsconfig.source import Document
from dsconfig.source.pointer import lookup, split
from dsconfig.source.reading import read_text


@dataclass(frozen=True)
class OpenFile:
    """One version of an open file with its findings; what needs the model is computed on demand."""

    document: Document
    validator: Validator
    """With the settings of the project and the target program of the file."""
    checked: FileReport

    @property
    def facts(self) -> Facts | None:
        """Model and GPUs from ``[tool.dsconfig]``; None if it names neither."""
        return self.validator.facts

    @property
    def program(self) -> Runtime:
        """The target program; dsengine if the project selects all of them."""
        target = self.validator.program
        return target.runtime if target is not None else runtime_of("dsengine")

    @cached_property
    def resolution(self) -> Resolution | None:
        """What the target program makes of the file; None if it cannot be resolved."""
        if self.document.is_broken or self.document.is_unreadable:
            return None
        with suppress(ValueError):
            return examination.resolution(self.document, self.facts, self.program)
        return None

    @cached_property
    def estimate(self) -> Estimate | None:
        """The memory of the project's model on its GPUs, with the assumptions of ``dsconfig
        estimate``; None if the config has errors or the project names no model."""
        facts, program = self.facts, self.program
        if self.resolution is None or facts is None or facts.model is None:
            return None
        with suppress(ValueError):
            facts, _ = assumed_facts.for_estimate(self.document, facts, program)
            return api.estimate(examination.resolution(self.document, facts, program), facts)
        return None

    def filled(self, pointer: str) -> LedgerEntry | None:
        """Return the value that replaces "auto" at a pointer, with its reason."""
        ledger = self.resolution.ledger if self.resolution is not None else ()
        return next((entry for entry in ledger if entry.pointer == pointer), None)

    def type_at(self, pointer: str) -> str | None:
        """Return the optimizer or scheduler whose arguments contain a pointer."""
        block, *rest = split(pointer) or [""]
        if block not in ("optimizer", "scheduler") or rest[:1] != ["params"]:
            return None
        named = lookup(self.document.value, f"/{block}/type", None)
        return named if isinstance(named, str) else None


def open_file(text: str, path: str, neighbours: Neighbours | None = None) -> OpenFile:
    """Check a text as the content of a file. Raises UsageError for invalid project settings."""
    validator = Validator(facts=project_facts(path), neighbours=neighbours).for_file(path)
    document = opening.completed(read_text(text, path), path)
    validator = validator.with_program(document, path)
    return OpenFile(document, validator, validator.report(document))


def is_config(text: str, path: str) -> bool:
    """Return whether a file is a config by its name or content, like those that a search finds."""
    return search.is_config(text, Path(path))


def project_facts(path: str) -> Facts | None:
    """Return the model and GPUs that the project names. Raises UsageError for unknown ones."""
    project = settings.settings_for(path)
    return _gathered(project.file, tuple(sorted(project.facts.items()))) if project.facts else None


@lru_cache(maxsize=64)
def _gathered(file: str, named: tuple[tuple[str, Any], ...]) -> Facts:
    with usage(file):
        return gathering.facts_of(FactsRequest(**dict(named)))


def clear_caches() -> None:
    """Read project settings again on next use."""
    settings.clear_cache()
    _gathered.cache_clear()
