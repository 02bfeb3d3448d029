"""A config as DeepSpeed reads it at one release. A broken one has answers, too."""

from collections.abc import Mapping
from functools import cache, cached_property
from typing import Any

from dsconfig.facts import Facts
from dsconfig.runtimes.base import AUTO
from dsconfig.runtimes.reading import Reading, read
from dsconfig.schema import former_names
from dsconfig.schema.catalogue import Key, block_at, field_of, keys_in
from dsconfig.schema.value_checks import ValueCheck
from dsconfig.schema.version import Version
from dsconfig.source.pointer import ABSENT, is_block, is_list, value_at

ZERO = ("zero_optimization",)
MONITORS = ("tensorboard", "wandb", "comet", "csv_monitor")


@cache
def _field(block: tuple[str, ...], name: str) -> Key:
    around = block_at(block)
    known = field_of(around, name) if around is not None else None
    assert known is not None, f"{'.'.join((*block, name))} is a key of the schema"
    return known


def _is_like(value: Any, default: Any) -> bool:
    """Whether a value is of the type of a default; a bool is no number, "auto" no word for None."""
    if default is None:
        return value != AUTO
    if isinstance(value, bool) or isinstance(default, bool):
        return isinstance(value, bool) and isinstance(default, bool)
    if isinstance(default, int | float):
        return isinstance(value, int | float)
    return isinstance(value, type(default))


def overlaps(given: object, stage: int) -> bool:
    """Return what ``overlap_comm`` comes to: where nothing is given (None), on at stage 3 alone."""
    return stage == 3 if given is None else bool(given)


class ReadConfig:
    """Values as written, and as the typed blocks of the release make them."""

    def __init__(self, config: object, version: Version, facts: Facts) -> None:
        self.config: dict[str, Any] = config if is_block(config) else {}
        self.version = version
        self.facts = facts

    @cached_property
    def reading(self) -> Reading:
        """The blocks DeepSpeed checks itself, as it converts them."""
        return read(self.config, self.version)

    def since(self, version: str) -> bool:
        """Whether the config is judged for this release or a later one."""
        return self.version >= Version.parse(version)

    def get(self, *path: str) -> Any:
        """The value as written; None where nothing is."""
        return value_at(self.config, path, None)

    def has(self, *path: str) -> bool:
        return value_at(self.config, path) is not ABSENT

    def block(self, *path: str) -> dict[str, Any]:
        """The block as written; empty where there is none."""
        value = self.get(*path)
        return value if is_block(value) else {}

    def in_force(self, block: tuple[str, ...], name: str) -> Any:
        """A field of a typed block: what is written, as DeepSpeed converts it, or the default."""
        default = self._default(block, name)
        value: Any = self.reading.values.get(block, {}).get(name, default)
        return value if _is_like(value, default) else default

    def is_on(self, block: tuple[str, ...], switch: str) -> bool:
        """Whether a switch of a typed block is on; none is in a block that the file has not."""
        return self.has(*block) and bool(self.in_force(block, switch))

    def written(self, block: tuple[str, ...], name: str) -> bool:
        """Whether a typed field is set, under any of its names, to a value of its type."""
        value: Any = self.reading.values.get(block, {}).get(name, ABSENT)
        return value is not ABSENT and _is_like(value, self._default(block, name))

    def _default(self, block: tuple[str, ...], name: str) -> Any:
        return _field(block, name).default_at(self.version)

    def items(self, *path: str) -> list[Any]:
        """The items of a list; none where there is no list."""
        value = self.get(*path)
        return list(value) if is_list(value) else []

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
        value = self.in_force(ZERO, "stage")
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
        return former_names.bf16_block(self.config)

    @cached_property
    def bf16(self) -> bool:
        return self._enabled(self.bf16_block)

    def _enabled(self, block: str) -> bool:
        """A precision switch; as Python sees it where the release does not check it."""
        if self.since("0.17.1"):
            return self.is_on((block,), "enabled")
        return bool(self.block(block).get("enabled", False))

    def offload(self, which: str) -> str:
        """The device of ``offload_param`` or ``offload_optimizer``: none, cpu or nvme."""
        path = (*ZERO, which)
        if self.has(*path) and _field(ZERO, which).read_at(self.version):
            return self.in_force(path, "device") or "none"
        return "cpu" if self.in_force(ZERO, former_names.SWITCHES[which]) else "none"

    @property
    def overlap_comm(self) -> bool:
        return overlaps(self.in_force(ZERO, "overlap_comm"), self.stage)

    @cached_property
    def keys(self) -> tuple[tuple[tuple[str, ...], Key], ...]:
        """The declared keys that the config has, by path as written."""
        return tuple(keys_in(self.config))

    @cached_property
    def removed(self) -> Mapping[tuple[str, ...], Key]:
        """The keys that some release refuses by name."""
        return {path: key for path, key in self.keys if key.declared.refused}

    @cached_property
    def failed_check(self) -> Mapping[tuple[str, ...], ValueCheck]:
        """What DeepSpeed insists on, of values it reads by hand, and does not get."""
        found = ((path, key.failed_check(self.get(*path), self.version)) for path, key in self.keys)
        return {path: wanted for path, wanted in found if wanted is not None}
