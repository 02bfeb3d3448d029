"""One config on the bench: its values as DeepSpeed reads them, the facts, the programs."""

import json
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

from dsconfig.checks.registry import EMBEDDED_IN_YAML, MODEL, NESTED, TRAINING
from dsconfig.checks.rule import Finding
from dsconfig.facts import Facts
from dsconfig.lazy_imports import lazy_imports
from dsconfig.report import Effect
from dsconfig.runtimes import conditions
from dsconfig.runtimes.base import ARGUMENTS, AUTO, AutoHandling, Runtime
from dsconfig.runtimes.read_config import ReadConfig
from dsconfig.runtimes.reading import read
from dsconfig.schema import ErrorKind, SchemaError, errors
from dsconfig.schema.key_index import is_live
from dsconfig.schema.version import NEWEST, Version
from dsconfig.source.document import Document
from dsconfig.source.pointer import is_block, join

with lazy_imports():
    from dsconfig.checks import spelling
    from dsconfig.facts import yaml_text
    from dsconfig.schema import optimizers

if TYPE_CHECKING:
    from dsconfig.schema import Key
    from dsconfig.schema.optimizers import OptimizerType


@lru_cache(maxsize=4096)
def key_at(path: tuple[str, ...], of_type: str | None = None) -> "Key | None":
    """The known key at a path, or None; ``of_type`` names the optimizer or scheduler."""
    # A file without mistakes, for the newest release, asks for no key.
    from dsconfig.schema import find

    return find(path, of_type=of_type)


MOST_COMPARED = 200
"""Names of one file that are compared with all known ones: a file with more unknown names than
that is not misspelt but something else, and each comparison may take half a millisecond."""


class Context(ReadConfig):
    """What the rules look at. Every question has an answer, also for a broken config."""

    def __init__(
        self,
        document: Document,
        facts: Facts,
        runtimes: tuple[Runtime, ...],
        version: Version,
    ) -> None:
        super().__init__(document.value, version, facts)
        self.document = document
        self.runtimes = runtimes
        self._compared = 0
        self.is_refused = False
        """Whether a rule before found what the program stops at."""

    @cached_property
    def triggers(self) -> frozenset[str]:
        """What triggers rules: the top-level keys, some nested ones, and the facts there are."""
        nested = (path for path in NESTED if self.has(*path.split(".")))
        facts = (MODEL,) if self.facts.model is not None else ()
        beside = (EMBEDDED_IN_YAML,) if self.document.container else ()
        training = self.facts.training
        arguments = (TRAINING,) if training is not None and training.arguments else ()
        named = (*facts, *beside, *arguments, *self.facts.releases)
        return frozenset((*self.config, *nested, *named))

    @property
    def release(self) -> Version:
        """The DeepSpeed that verdicts are about: the newest known for those that come after it."""
        return min(self.version, NEWEST)

    @property
    def is_unscaled(self) -> bool:
        """Whether this is fp16 at stage 0 with a loss scale, by which recent releases divide what
        they have not multiplied (DSC845).
        """
        at_stage_0 = self.stage == 0 and self.stage_is_known
        in_fp16 = self.fp16 and not self.bf16  # no run has both
        return at_stage_0 and in_fp16 and self.number("fp16", "loss_scale") != 1

    @cached_property
    def optimizer(self) -> str | None:
        """The optimizer's type as written."""
        value = self.get("optimizer", "type")
        return value if isinstance(value, str) else None

    @property
    def optimizer_type(self) -> "OptimizerType | None":
        """The known type that is written, in whatever spelling DeepSpeed takes."""
        return optimizers.optimizer_type(self.optimizer or "")

    def is_optimizer(self, *names: str) -> bool:
        """Whether the file's optimizer is one of these types."""
        found = self.optimizer_type
        return found is not None and found.name in names

    @property
    def builds_cpu_adam(self) -> bool:
        """Whether the file's optimizer, offloaded, is DeepSpeed's CPU Adam."""
        found = self.optimizer_type
        params = self.block("optimizer", "params")
        built = found.class_in_deepspeed(params, offloaded=True) if found is not None else None
        return built == "DeepSpeedCPUAdam"

    @cached_property
    def scheduler(self) -> str | None:
        value = self.get("scheduler", "type")
        return value if isinstance(value, str) else None

    def violations(self, rule: str) -> Iterator[conditions.Violation]:
        """Where the condition between keys that a rule tells about is not met."""
        return conditions.CONDITIONS[rule].find(self)

    def violation_findings(self, rule: str, then: str, help: str) -> Iterator[Finding]:
        """A finding at each such place: what is said of it, what happens ``then``, what to do."""
        for violation in self.violations(rule):
            yield Finding(path=violation.path, message=f"{violation.said}: {then}", help=help)

    @cached_property
    def runs_deepspeed(self) -> bool:
        """Whether DeepSpeed is among the programs, or below one of them."""
        return any(runtime.runs_deepspeed for runtime in self.runtimes)

    @cached_property
    def _unknown(self) -> frozenset[str]:
        return frozenset(
            error.pointer for error in self.schema_errors if error.kind is ErrorKind.UNKNOWN
        )

    def is_unknown(self, path: tuple[str, ...]) -> bool:
        """Whether no program has a key at this path, or at one above it."""
        return bool(self._unknown) and any(
            join(*path[:depth]) in self._unknown for depth in range(1, len(path) + 1)
        )

    @cached_property
    def autos(self) -> Mapping[tuple[str, ...], Mapping[Runtime, AutoHandling]]:
        """What each program makes of each "auto" whose key is known."""
        return {
            path: {runtime: runtime.on_auto(path, self.config) for runtime in self.runtimes}
            for path in self.paths
            if self.get(*path) == AUTO and not self.is_unknown(path)
        }

    def is_unread(self, path: tuple[str, ...]) -> bool:
        """Whether a key is documented by DeepSpeed and read by no release of it."""
        if is_live(path):
            return False
        from dsconfig.schema import KeyStatus

        found = self.key_at(path)
        return found is not None and found.status is KeyStatus.DOCS_ONLY

    def key_at(self, path: tuple[str, ...]) -> "Key | None":
        """The known key at a path, or None; among the arguments of this optimizer."""
        of_type = self.get(path[0], "type") if len(path) > 2 else None
        return key_at(path, of_type if isinstance(of_type, str) else None)

    def accepts(self, path: tuple[str, ...], value: Any) -> bool:
        """Whether this release reads a key there, of this optimizer, and such a value for it."""
        known = self.key_at(path)
        if known is None or known.declared.replaced_by or not known.read_at(self.version):
            return False
        probe: dict[str, Any] = {path[-1]: value}
        for name in reversed(path[:-1]):
            probe = {name: probe}
        if len(path) > 2 and self.has(path[0], "type"):
            probe[path[0]]["type"] = self.get(path[0], "type")
        if known.failed_check(value, self.version) or any(
            error.pointer == join(*path) for error in errors(probe)
        ):
            return False
        entry = read(probe, self.version).at(path)
        return entry is None or not entry.refused

    def is_in_force(self, block: tuple[str, ...]) -> bool:
        """Whether a file has a block, and no switch in it or around it is off."""
        if block and not self.has(*block):
            return False
        around = (block[:depth] for depth in range(1, len(block) + 1))
        return all(self.get(*path, "enabled") is not False for path in around)

    def is_native_auto(self, path: tuple[str, ...]) -> bool:
        """Whether "auto" is a setting of DeepSpeed's own at this path."""
        known = self.key_at(path)
        return known is not None and known.means_auto

    def default_of(self, path: tuple[str, ...]) -> str:
        """The default in words, with a blank before it; empty where none is known."""
        known = self.key_at(path)
        value = None if known is None or known.is_block else known.default_at(self.version)
        return "" if value is None else f" {json.dumps(value)}"

    def argument_location(self, path: str) -> str:
        """A TrainingArgument with its place."""
        file = self.facts.origins.get("training")
        return f"{yaml_text.place(file, path) if file else ARGUMENTS}: {path}"

    def argument_finding(
        self,
        path: str,
        said: str,
        help: str,
        *,
        late: bool | None = None,
        effect: Effect | None = None,
    ) -> Finding:
        """A finding about a TrainingArgument, which stands in another file or in none."""
        message, in_file = f"{self.argument_location(path)}{said}", "training" in self.facts.origins
        return Finding((), message, help, effect, late, in_other_file=in_file)

    def closest(self, name: str, known: Iterable[str]) -> str | None:
        """The known name that is spelled most alike; None where none is close.

        Only the first ``MOST_COMPARED`` names of a file get an answer.
        """
        self._compared += 1
        return spelling.closest(name, known) if self._compared <= MOST_COMPARED else None

    def suggestion(self, name: str, known: Iterable[str]) -> str:
        """What to do with a name that nothing reads."""
        alike = self.closest(name, sorted(known))
        return f'did you mean "{alike}"?' if alike else "delete it"

    @cached_property
    def schema_errors(self) -> list[SchemaError]:
        """What the strict models refuse, whoever would take it."""
        return errors(self.config)

    @cached_property
    def paths(self) -> tuple[tuple[str, ...], ...]:
        """The path of every key, outer ones first."""
        return tuple(_paths_in(self.config, ()))


def _paths_in(block: dict[str, Any], outer: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for name, value in block.items():
        yield (*outer, name)
        if is_block(value):
            yield from _paths_in(value, (*outer, name))
