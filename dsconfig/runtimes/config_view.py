"""The view of a config: what is written, what DeepSpeed reads at a release, what "auto" becomes."""

from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cache, cached_property
from math import isfinite
from typing import TYPE_CHECKING, Any, TypeVar

from dsconfig.facts import Facts
from dsconfig.lazy_imports import lazy_imports
from dsconfig.runtimes import coercion
from dsconfig.runtimes.base import AUTO, Runtime
from dsconfig.runtimes.reading import Reading, read
from dsconfig.runtimes.settings import default_of
from dsconfig.schema import former_names
from dsconfig.schema.catalogue import Key, block_at, blocks_of, field_of, find, keys_in, named
from dsconfig.schema.key_index import name_in_block
from dsconfig.schema.paths import ROOT, STAGE, ZERO, KeyPath
from dsconfig.schema.value_checks import ValueCheck
from dsconfig.schema.version import Version
from dsconfig.source.pointer import ABSENT, is_block, is_list, value_at

with lazy_imports():
    from dsconfig.runtimes import deciding

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    D = TypeVar("D", bound=DataclassInstance)
else:
    D = TypeVar("D")

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


def _switch(value: Any) -> bool:
    return bool(value) and value != AUTO


def _count(value: Any) -> int | None:
    if isinstance(value, float) and not isfinite(value):
        return None
    return int(value) if isinstance(value, int | float) else None


_CONVERTED: Mapping[Any, Callable[[Any], Any]] = {
    bool: _switch,
    int: lambda value: int(value or 0),
    float: lambda value: float(value or 0),
    int | None: _count,
}
"""Conversions by field type; other values stay as they are."""


class ConfigView:
    """A config, valid or not, with the values that each "auto" gets as far as facts decide them.

    ``program``: replaces "auto" before DeepSpeed reads the config; None if no or several programs.
    """

    def __init__(
        self, config: object, facts: Facts, version: Version, program: Runtime | None = None
    ) -> None:
        self.as_written: dict[str, Any] = config if is_block(config) else {}
        """The values of the file, also where the facts decide what "auto" becomes."""
        if program is not None and program.auto_fills:
            config = deciding.with_decided(config, facts, program)
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

    def given(self, path: KeyPath) -> Any:
        """Return the value as written under any name of the key, or ABSENT."""
        block = value_at(self.config, path.parent)
        return block.get(name_in_block(path, block), ABSENT) if is_block(block) else ABSENT

    def is_set(self, path: KeyPath) -> bool:
        """Return whether a value other than null is set, under any name of the key."""
        found = self.given(path)
        return found is not ABSENT and found is not None

    def is_auto(self, path: KeyPath) -> bool:
        found = self.given(path)
        return isinstance(found, str) and found == AUTO

    def value(self, path: KeyPath) -> Any:
        """Return the value under any name of the key, or the default if it is missing or null.

        For configs without errors: an invalid value is returned as written. Raises ValueError if it
        is "auto" although the key has a resolver.
        """
        given = self.given(path)
        if given is ABSENT or given is None:
            return default_of(path, self.version)
        known = find(path)
        if known is None or not isinstance(given, str):
            return given
        if given == AUTO and known.shape.auto and known.auto_filled_by:
            raise ValueError(f'{path} is still "auto"; resolve the config first')
        if not known.checked_at(self.version):
            return given
        try:  # DeepSpeed's model converts strings: "2" to 2, "false" to False
            return coercion.convert(known.kind, given, self.version, known.choices)
        except coercion.Refused:
            return given

    def flag(self, path: KeyPath) -> bool:
        """Return a switch; off if the file does not have the block, regardless of its default."""
        return (not path.parent or self.is_set(path.parent)) and _switch(self.value(path))

    @property
    def is_elastic(self) -> bool:
        """Whether ``elasticity`` decides the batch, in the releases that read it."""
        known = find(ROOT / "elasticity")
        is_read = known is not None and known.read_at(self.version)
        return is_read and self.flag(ROOT / "elasticity" / "enabled")

    def count(self, path: KeyPath) -> int | None:
        """Return an integer, or None."""
        return _count(self.value(path))

    def build(self, kind: type[D], at: KeyPath | None = None, **given: Any) -> D:
        """Fill a dataclass of settings; ``given`` are fields that depend on several keys.

        ``at``: block to read instead of the one in the field declarations.
        """
        values = dict(given)
        for each in fields(kind):
            path: KeyPath | None = each.metadata.get("key")
            if path is None or each.name in given:
                continue
            if at is not None:
                path = at / path.name
                if find(path) is None:
                    continue
            convert = _CONVERTED.get(each.type)
            value = self.value(path)
            values[each.name] = value if convert is None else convert(value)
        return kind(**values)

    def filled(self, name: str) -> dict[str, Any]:
        """Return a block with defaults filled in; nested blocks as written."""
        parent = find((name,))
        assert parent is not None, f"{name} is a block of the schema"
        inside = named(blocks_of(parent.shape), parent).values()
        return self.given(ROOT / name) | {each.name: self.value(each.key_path) for each in inside}

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
