"""One config on the bench: its values as DeepSpeed reads them, the facts, the programs."""

import json
from collections.abc import Iterable, Mapping
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

from dsconfig.checks.registry import MODEL, NESTED
from dsconfig.facts import Facts
from dsconfig.runtimes.base import AutoFate, Runtime
from dsconfig.runtimes.deepspeed import NATIVE_AUTO
from dsconfig.runtimes.demands import Demand, demands
from dsconfig.runtimes.reading import Reading, is_block, read
from dsconfig.schema import ErrorKind, SchemaError, errors
from dsconfig.schema.homes import lives
from dsconfig.schema.version import Version
from dsconfig.source.document import Document
from dsconfig.source.pointer import join

if TYPE_CHECKING:
    from dsconfig.schema import Key


@lru_cache(maxsize=4096)
def key_at(path: tuple[str, ...], of_type: str | None = None) -> "Key | None":
    """The known key at a path, or None; ``of_type`` names the optimizer or scheduler."""
    # A file without mistakes, for the newest release, asks for no key.
    from dsconfig.schema import find

    return find(path, of_type=of_type)


T = TypeVar("T")
AUTO = "auto"
MOST_COMPARED = 200
"""Names of one file that are compared with all known ones: a file with more unknown names than
that is not misspelt but something else, and each comparison may take half a millisecond."""
ZERO = ("zero_optimization",)


class Context:
    """What the rules look at. Every question has an answer, also for a broken config."""

    def __init__(
        self,
        document: Document,
        facts: Facts,
        runtimes: tuple[Runtime, ...],
        version: Version,
    ) -> None:
        self.document = document
        self.config: dict[str, Any] = document.value if is_block(document.value) else {}
        self.facts = facts
        self.runtimes = runtimes
        self.version = version
        self._compared = 0

    @cached_property
    def words(self) -> frozenset[str]:
        """What wakes rules: the top-level keys, some nested ones, and the facts there are."""
        nested = (path for path in NESTED if self.has(*path.split(".")))
        facts = (MODEL,) if self.facts.model is not None else ()
        return frozenset((*self.config, *nested, *facts))

    @cached_property
    def reading(self) -> Reading:
        """The blocks DeepSpeed checks itself, as it converts them."""
        return read(self.config, self.version)

    def since(self, version: str) -> bool:
        """Whether the config is judged for this release or a later one."""
        return self.version >= Version.parse(version)

    def get(self, *path: str) -> Any:
        """The value as written; None where nothing is."""
        value: Any = self.config
        for part in path:
            if not isinstance(value, dict):
                return None
            value = value.get(part)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        return value  # pyright: ignore[reportUnknownVariableType]

    def has(self, *path: str) -> bool:
        *above, name = path
        holder = self.get(*above) if above else self.config
        return is_block(holder) and name in holder

    def block(self, *path: str) -> dict[str, Any]:
        """The block as written; empty where there is none."""
        value = self.get(*path)
        return value if is_block(value) else {}

    def read(self, block: tuple[str, ...], name: str, default: T) -> T:
        """A field of a typed block after DeepSpeed's conversions, if it has the right type."""
        value: Any = self.reading.values.get(block, {}).get(name, default)
        if isinstance(value, bool) != isinstance(default, bool):
            return default
        if isinstance(default, (int, float)):
            return value if isinstance(value, (int, float)) else default  # pyright: ignore[reportReturnType]
        return value if isinstance(value, type(default)) else default

    def written(self, block: tuple[str, ...], name: str) -> bool:
        """Whether a typed field is set, under either of its names, to more than "auto"."""
        return name in self.reading.values.get(block, {})

    def items(self, *path: str) -> list[Any]:
        """The items of a list; none where there is no list."""
        value = self.get(*path)
        return list(value) if isinstance(value, list) else []  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]

    def number(self, *path: str) -> float | None:
        """A number as written; None for anything else (a bool is no number)."""
        value = self.get(*path)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return value
        return None

    def switch(self, *path: str) -> bool:
        """Whether an untyped switch counts as on, as Python sees it."""
        value = self.get(*path)
        return bool(value) and value != AUTO

    @cached_property
    def stage(self) -> int:
        """The ZeRO stage in force; 0 where none is set or the value is refused."""
        whole = self.config.get("zero_optimization")
        if isinstance(whole, bool):
            return int(whole)
        value = self.read(ZERO, "stage", 0)
        return int(value) if value in (0, 1, 2, 3) else 0

    @cached_property
    def stage_is_known(self) -> bool:
        """False where "auto" or a refused value stands in place of the stage."""
        block = self.get("zero_optimization")
        if not is_block(block):
            return not isinstance(block, str)
        return "stage" not in block or self.written(ZERO, "stage")

    @cached_property
    def fp16(self) -> bool:
        return self._enabled("fp16")

    @cached_property
    def bf16_block(self) -> str:
        """The name of the block that counts."""
        return "bfloat16" if self.config.get("bf16") is None else "bf16"

    @cached_property
    def bf16(self) -> bool:
        return self._enabled(self.bf16_block)

    def _enabled(self, block: str) -> bool:
        """A precision switch; as Python sees it where the release does not check it."""
        if self.since("0.17.1"):
            return self.read((block,), "enabled", False)
        return bool(self.block(block).get("enabled", False))

    def offload(self, which: str) -> str:
        """The device of ``offload_param`` or ``offload_optimizer``: none, cpu or nvme."""
        path = (*ZERO, which)
        old = {"offload_param": "cpu_offload_param", "offload_optimizer": "cpu_offload"}[which]
        if not self.has(*path) and self.read(ZERO, old, False):
            return "cpu"
        return self.read(path, "device", "none")

    @cached_property
    def optimizer(self) -> str | None:
        """The optimizer's type as written."""
        value = self.get("optimizer", "type")
        return value if isinstance(value, str) else None

    @cached_property
    def scheduler(self) -> str | None:
        value = self.get("scheduler", "type")
        return value if isinstance(value, str) else None

    @cached_property
    def unmet(self) -> dict[tuple[str, ...], Demand]:
        """What DeepSpeed demands of values it reads unchecked, and does not get."""
        found: dict[tuple[str, ...], Demand] = {}
        for path, wanted in demands().items():
            if path[0] in self.config and self.has(*path):
                value = self.get(*path)
                for demand in wanted:
                    if demand.holds_at(self.version) and not demand.accepts(value):
                        found[path] = demand
        return found

    @cached_property
    def ends_in_deepspeed(self) -> bool:
        """Whether DeepSpeed is among the programs, or below one of them."""
        return any(runtime.ends_in_deepspeed for runtime in self.runtimes)

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
    def autos(self) -> Mapping[tuple[str, ...], Mapping[Runtime, AutoFate]]:
        """What each program makes of each "auto" whose key is known."""
        return {
            path: {runtime: runtime.on_auto(path, self.config) for runtime in self.runtimes}
            for path in self.paths
            if self.get(*path) == AUTO and not self.is_unknown(path)
        }

    def is_unread(self, path: tuple[str, ...]) -> bool:
        """Whether a key is documented by DeepSpeed and read by no release of it."""
        if lives(path):
            return False
        from dsconfig.schema import Status

        found = self.key_at(path)
        return found is not None and found.status is Status.DOCS_ONLY

    def key_at(self, path: tuple[str, ...]) -> "Key | None":
        """The known key at a path, or None; among the arguments of this optimizer."""
        of_type = self.get(path[0], "type") if len(path) > 2 else None
        return key_at(path, of_type if isinstance(of_type, str) else None)

    def is_native_auto(self, path: tuple[str, ...]) -> bool:
        """Whether "auto" is a setting of DeepSpeed's own at this path."""
        return path in NATIVE_AUTO

    def default_of(self, path: tuple[str, ...]) -> str:
        """The default in words, with a blank before it; empty where none is known."""
        known = self.key_at(path)
        value = None if known is None or known.is_block else known.default_at(self.version)
        return "" if value is None else f" {json.dumps(value)}"

    def closest(self, name: str, known: Iterable[str]) -> str | None:
        """The known name that is spelled most alike; None where none is close.

        Only the first ``MOST_COMPARED`` names of a file get an answer.
        """
        from dsconfig.checks.spelling import closest

        self._compared += 1
        return closest(name, known) if self._compared <= MOST_COMPARED else None

    @cached_property
    def schema_errors(self) -> list[SchemaError]:
        """What the strict models refuse, whoever would take it."""
        return errors(self.config)

    @cached_property
    def paths(self) -> tuple[tuple[str, ...], ...]:
        """The path of every key, outer ones first."""
        found: list[tuple[str, ...]] = []
        _collect(self.config, (), found)
        return tuple(found)


def _collect(block: dict[str, Any], path: tuple[str, ...], found: list[tuple[str, ...]]) -> None:
    for name, value in block.items():
        inner = (*path, name)
        found.append(inner)
        if is_block(value):
            _collect(value, inner, found)
