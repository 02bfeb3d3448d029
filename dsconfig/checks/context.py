"""The config under test: its values as DeepSpeed reads them, the facts and the programs."""

import json
from collections.abc import Iterable, Mapping
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

from dsconfig.checks.registry import DIVIDED, EMBEDDED_IN_YAML, MODEL, NESTED, TRAINING
from dsconfig.checks.rule import Finding, Phase
from dsconfig.facts import Facts
from dsconfig.lazy_imports import lazy_imports
from dsconfig.mesh import UNDIVIDED
from dsconfig.report import Effect
from dsconfig.runtimes.base import ARGUMENTS, AUTO, AutoHandling, Runtime
from dsconfig.runtimes.config_view import ConfigView
from dsconfig.runtimes.reading import read
from dsconfig.schema import ErrorKind, SchemaError, errors
from dsconfig.schema.key_index import is_live
from dsconfig.schema.paths import ROOT, KeyPath
from dsconfig.schema.version import NEWEST, Version
from dsconfig.source.document import Document
from dsconfig.source.pointer import value_at, walk

with lazy_imports():
    from dsconfig.facts import yaml_text
    from dsconfig.schema import optimizers, spelling

if TYPE_CHECKING:
    from dsconfig.runtimes.replay import Replay
    from dsconfig.schema import Key
    from dsconfig.schema.optimizers import OptimizerType


@lru_cache(maxsize=4096)
def key_at(path: KeyPath, of_type: str | None = None) -> "Key | None":
    """Return the known key at a path, or None; ``of_type`` names the optimizer or scheduler."""
    # Imported here because a file without mistakes needs no key.
    from dsconfig.schema import find

    return find(path, of_type=of_type)


MOST_COMPARED = 200
"""Names per file that are compared with all known ones: a file with more unknown names is a
different kind of file, and each comparison may take half a millisecond."""


class Context(ConfigView):
    """The input of the rules. Every method works for a broken config as well."""

    def __init__(
        self,
        document: Document,
        facts: Facts,
        runtimes: tuple[Runtime, ...],
        version: Version,
    ) -> None:
        program = runtimes[0] if len(runtimes) == 1 else None
        super().__init__(document.value, facts, version, program)
        self.document = document
        self.runtimes = runtimes
        self._compared = 0
        self.refused: set[str] = set()
        """Pointers at which earlier rules found what stops the program."""
        self.replays: list[Replay | None] = []
        """What the program makes of the config, once it was replayed."""

    @cached_property
    def triggers(self) -> frozenset[str]:
        """Triggers that are present: top-level keys, some nested keys, and known facts."""
        nested = (path for path in NESTED if self.has(*KeyPath.parse(path)))
        facts = (MODEL,) if self.facts.model is not None else ()
        embedded = (EMBEDDED_IN_YAML,) if self.document.container else ()
        training = self.facts.training
        arguments = (TRAINING,) if training is not None and training.arguments else ()
        divided = (DIVIDED,) if self.facts.degrees != UNDIVIDED else ()
        known = (*facts, *embedded, *arguments, *divided, *self.facts.releases)
        return frozenset((*self.config, *nested, *known))

    @property
    def release(self) -> Version:
        """DeepSpeed release that messages name: at most the newest known."""
        return min(self.version, NEWEST)

    @property
    def is_unscaled(self) -> bool:
        """Whether this is fp16 at stage 0 with a loss scale, by which recent releases divide the
        gradients without having scaled the loss (DSC845).
        """
        at_stage_0 = self.stage == 0 and self.stage_is_known
        in_fp16 = self.fp16 and not self.bf16
        return at_stage_0 and in_fp16 and self.number("fp16", "loss_scale") != 1

    @cached_property
    def optimizer(self) -> str | None:
        """Optimizer type as written."""
        value = self.get("optimizer", "type")
        return value if isinstance(value, str) else None

    @property
    def optimizer_type(self) -> "OptimizerType | None":
        """Known optimizer type, in any spelling that DeepSpeed accepts."""
        return optimizers.optimizer_type(self.optimizer or "")

    def is_optimizer(self, *names: str) -> bool:
        """Return whether the config's optimizer is one of these types."""
        known = self.optimizer_type
        return known is not None and known.name in names

    @property
    def builds_cpu_adam(self) -> bool:
        """Whether the config's optimizer, offloaded, is DeepSpeedCPUAdam."""
        found = self.optimizer_type
        params = self.block("optimizer", "params")
        built = found.class_in_deepspeed(params, offloaded=True) if found is not None else None
        return built == "DeepSpeedCPUAdam"

    @cached_property
    def scheduler(self) -> str | None:
        value = self.get("scheduler", "type")
        return value if isinstance(value, str) else None

    @cached_property
    def runs_deepspeed(self) -> bool:
        """Whether one of the programs is DeepSpeed or uses it."""
        return any(runtime.runs_deepspeed for runtime in self.runtimes)

    @cached_property
    def _unknown(self) -> frozenset[str]:
        return frozenset(
            error.pointer for error in self.schema_errors if error.kind is ErrorKind.UNKNOWN
        )

    def is_unknown(self, path: KeyPath) -> bool:
        """Return whether this path, or a block above it, is unknown to every program."""
        return bool(self._unknown) and any(
            KeyPath(path[:depth]).pointer in self._unknown for depth in range(1, len(path) + 1)
        )

    @cached_property
    def autos(self) -> Mapping[KeyPath, Mapping[Runtime, AutoHandling]]:
        """How each program handles each "auto" of a known key."""
        return {
            path: {runtime: runtime.on_auto(path, self.as_written) for runtime in self.runtimes}
            for path in self.paths
            if value_at(self.as_written, path) == AUTO and not self.is_unknown(path)
        }

    def is_unread(self, path: KeyPath) -> bool:
        """Return whether DeepSpeed documents a key that none of its releases reads."""
        if is_live(path):
            return False
        from dsconfig.schema import KeyStatus

        found = self.key_at(path)
        return found is not None and found.status is KeyStatus.DOCS_ONLY

    def key_at(self, path: KeyPath) -> "Key | None":
        """Return the known key at a path, or None, given the optimizer or scheduler type."""
        of_type = self.get(path[0], "type") if len(path) > 2 else None
        return key_at(path, of_type if isinstance(of_type, str) else None)

    @property
    def is_refused(self) -> bool:
        """Whether an earlier rule found what stops the program."""
        return bool(self.refused)

    def is_refused_by_name(self, path: KeyPath) -> bool:
        """Return whether this release rejects the key, or a block around it, whatever its value."""
        return any(
            key.refused_from is not None and self.version >= key.refused_from
            for at, key in self.removed.items()
            if path[: len(at)] == at
        )

    def accepts(self, path: KeyPath, value: Any) -> bool:
        """Return whether this release reads a key at this path and accepts the value."""
        known = self.key_at(path)
        if known is None or known.declared.replaced_by or not known.read_at(self.version):
            return False
        probe: dict[str, Any] = {path[-1]: value}
        for name in reversed(path[:-1]):
            probe = {name: probe}
        if len(path) > 2 and self.has(path[0], "type"):
            probe[path[0]]["type"] = self.get(path[0], "type")
        if known.failed_check(value, self.version) or any(
            error.pointer == path.pointer for error in errors(probe)
        ):
            return False
        entry = read(probe, self.version).at(path)
        return entry is None or not entry.refused

    def is_in_force(self, block: KeyPath) -> bool:
        """Return whether a block is present and neither it nor an outer block is disabled."""
        if block and not self.has(*block):
            return False
        blocks = (block[:depth] for depth in range(1, len(block) + 1))
        return all(self.get(*path, "enabled") is not False for path in blocks)

    def is_native_auto(self, path: KeyPath) -> bool:
        """Return whether DeepSpeed itself accepts "auto" at this path."""
        known = self.key_at(path)
        return known is not None and known.means_auto

    def default_of(self, path: KeyPath) -> str:
        """Return the default as text with a leading space, or an empty string."""
        known = self.key_at(path)
        value = None if known is None or known.is_block else known.default_at(self.version)
        return "" if value is None else f" {json.dumps(value)}"

    def argument_finding(
        self,
        path: str,
        problem: str,
        help: str,
        *,
        effect: Effect | None = None,
        phase: Phase | None = None,
    ) -> Finding:
        """Return a finding at a TrainingArgument: the message names its file if it has no range."""
        file = self.facts.origins.get("training")
        place = yaml_text.key_range(file, path) if file else None
        return Finding(
            ROOT,
            f"{path}{problem}" if place else f"{file or ARGUMENTS}: {path}{problem}",
            help,
            effect,
            phase,
            file=None if file == self.document.name else file,
            range=place,
            in_other_file=file is not None and place is None,
        )

    def closest(self, name: str, known: Iterable[str]) -> str | None:
        """Return the known name with the closest spelling, or None.

        Only the first ``MOST_COMPARED`` names of a file are compared.
        """
        self._compared += 1
        return spelling.closest(name, known) if self._compared <= MOST_COMPARED else None

    def suggestion(self, name: str, known: Iterable[str]) -> str:
        """Return the help for an unknown name."""
        closest = self.closest(name, sorted(known))
        return f'did you mean "{closest}"?' if closest else "delete it"

    @cached_property
    def schema_errors(self) -> list[SchemaError]:
        """Errors of the strict schema, independent of what the programs accept."""
        return errors(self.as_written)

    @cached_property
    def paths(self) -> tuple[KeyPath, ...]:
        """Path of every key, outer keys first."""
        return tuple(path for path, _ in walk(self.as_written))
