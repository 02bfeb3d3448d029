"""A config, valid or not, as DeepSpeed reads it at a release."""

from collections.abc import Mapping
from functools import cache, cached_property
from typing import Any

from dsconfig.facts import Facts
from dsconfig.runtimes.base import AUTO
from dsconfig.runtimes.reading import Reading, read
from dsconfig.schema import former_names
from dsconfig.schema.catalogue import Key, block_at, field_of, keys_in
from dsconfig.schema.paths import ROOT, STAGE, ZERO, KeyPath
from dsconfig.schema.value_checks import ValueCheck
from dsconfig.schema.version import Version
from dsconfig.source.pointer import ABSENT, is_block, is_list, value_at

MONITORS = ("tensorboard", "wandb", "comet", "csv_monitor")


@cache
def _field(block: KeyPath, name: str) -> Key:
    around = block_at(block)
    known = field_of(around, name) if around is not None else None
    assert known is not None, f"{block / name} is a key of the schema"
    return known


def _is_like(value: Any, default: Any) -> bool:
    """Return whether a value has the type of a default; bool is not a number."""
    if default is None:
        return value != AUTO
    if isinstance(value, bool) or isinstance(default, bool):
        return isinstance(value, bool) and isinstance(default, bool)
    if isinstance(default, int | float):
        return isinstance(value, int | float)
    return isinstance(value, type(default))


def overlaps(given: object, stage: int) -> bool:
    """Return the effective ``overlap_comm``; if unset (None), on at stage 3 only."""
    return stage == 3 if given is None else bool(given)


class ReadConfig:
    """Values as written and as converted by the typed blocks of the release."""

    def __init__(self, config: object, version: Version, facts: Facts) -> None:
        self.config: dict[str, Any] = config if is_block(config) else {}
        self.version = version
        self.facts = facts

    @cached_property
    def reading(self) -> Reading:
        """The typed blocks, as DeepSpeed converts them."""
        return read(self.config, self.version)

    def since(self, version: str) -> bool:
        """Return whether the target release is this one or later."""
        return self.version >= Version.parse(version)

    def get(self, *path: str) -> Any:
        """Return the value as written, or None."""
        return value_at(self.config, path, None)

    def has(self, *path: str) -> bool:
        return value_at(self.config, path) is not ABSENT

    def block(self, *path: str) -> dict[str, Any]:
        """Return the block as written; empty if absent."""
        value = self.get(*path)
        return value if is_block(value) else {}

    def in_force(self, block: KeyPath, name: str) -> Any:
        """Return a field of a typed block: the converted value, or the default."""
        default = self._default(block, name)
        value: Any = self.reading.values.get(block, {}).get(name, default)
        return value if _is_like(value, default) else default

    def is_on(self, block: KeyPath, switch: str) -> bool:
        """Return whether a switch of a typed block is on; off if the block is absent."""
        return self.has(*block) and bool(self.in_force(block, switch))

    def written(self, block: KeyPath, name: str) -> bool:
        """Return whether a typed field is set, under any of its names, to a valid value."""
        value: Any = self.reading.values.get(block, {}).get(name, ABSENT)
        return value is not ABSENT and _is_like(value, self._default(block, name))

    def _default(self, block: KeyPath, name: str) -> Any:
        return _field(block, name).default_at(self.version)

    def items(self, *path: str) -> list[Any]:
        """Return the items of a list; empty if it is not a list."""
        value = self.get(*path)
        return list(value) if is_list(value) else []

    def number(self, *path: str) -> float | None:
        """Return a number as written, or None (bool is not a number)."""
        value = self.get(*path)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return value
        return None

    def switch(self, *path: str) -> bool:
        """Return the truth value of an untyped switch."""
        value = self.get(*path)
        return bool(value) and value != AUTO

    @cached_property
    def stage(self) -> int:
        """The effective ZeRO stage; 0 if unset or invalid."""
        block = self.config.get(ZERO.name)
        if isinstance(block, bool):
            return int(block)
        value = self.in_force(ZERO, STAGE.name)
        return int(value) if value in (0, 1, 2, 3) else 0

    @cached_property
    def stage_is_known(self) -> bool:
        """False if the stage is "auto" or invalid."""
        block = self.get(*ZERO)
        if not is_block(block):
            return not isinstance(block, str)
        return STAGE.name not in block or self.written(ZERO, STAGE.name)

    @cached_property
    def fp16(self) -> bool:
        return self._enabled("fp16")

    @cached_property
    def bf16_block(self) -> str:
        """Name of the bf16 block that applies."""
        return former_names.bf16_block(self.config)

    @cached_property
    def bf16(self) -> bool:
        return self._enabled(self.bf16_block)

    def _enabled(self, block: str) -> bool:
        """Return a precision switch; its truth value if the release does not check it."""
        if self.since("0.17.1"):
            return self.is_on(ROOT / block, "enabled")
        return bool(self.block(block).get("enabled", False))

    def offload(self, which: str) -> str:
        """Return the device of ``offload_param`` or ``offload_optimizer``: none, cpu or nvme."""
        path = ZERO / which
        if self.has(*path) and _field(ZERO, which).read_at(self.version):
            return self.in_force(path, "device") or "none"
        return "cpu" if self.in_force(ZERO, former_names.SWITCHES[which]) else "none"

    @property
    def overlap_comm(self) -> bool:
        return overlaps(self.in_force(ZERO, "overlap_comm"), self.stage)

    @cached_property
    def keys(self) -> tuple[tuple[KeyPath, Key], ...]:
        """Declared keys in the config, by path as written."""
        return tuple(keys_in(self.config))

    @cached_property
    def removed(self) -> Mapping[KeyPath, Key]:
        """Keys that some release refuses by name."""
        return {path: key for path, key in self.keys if key.declared.refused}

    @cached_property
    def failed_check(self) -> Mapping[KeyPath, ValueCheck]:
        """Failed checks of values that DeepSpeed reads explicitly."""
        found = ((path, key.failed_check(self.get(*path), self.version)) for path, key in self.keys)
        return {path: wanted for path, wanted in found if wanted is not None}
