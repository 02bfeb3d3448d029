"""DeepSpeed's typed blocks applied to a config: what each key becomes, and what is refused."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, NamedTuple, TypeGuard

from dsconfig.runtimes.coercion import Kind, Refused, convert
from dsconfig.runtimes.typed_blocks import BLOCKS, Block, Field
from dsconfig.schema.version import Version
from dsconfig.source.pointer import ABSENT, value_at

AUTO = "auto"


def is_block(value: object) -> TypeGuard[dict[str, Any]]:
    """Whether a value is a mapping; the keys of a config are texts."""
    return isinstance(value, dict)


class Outcome(StrEnum):
    """What became of one key of a typed block."""

    TAKEN = "taken"
    CONVERTED = "converted"
    """Of another type, and taken nevertheless."""
    DROPPED = "dropped"
    """The word "auto": removed before the block is checked."""
    SWALLOWED = "swallowed"
    """The word ``strict``, which the models take for themselves."""
    UNKNOWN = "unknown"
    TWICE = "twice"
    """Given under both of its names."""
    NOT_YET = "not yet"
    GONE = "gone"
    BAD_TYPE = "bad type"
    OUT_OF_BOUNDS = "out of bounds"
    NOT_A_BLOCK = "not a block"


REFUSALS = frozenset(
    {
        Outcome.UNKNOWN,
        Outcome.TWICE,
        Outcome.NOT_YET,
        Outcome.GONE,
        Outcome.BAD_TYPE,
        Outcome.OUT_OF_BOUNDS,
        Outcome.NOT_A_BLOCK,
    }
)


class Entry(NamedTuple):
    """One key that was not simply taken. ``value`` is what it became."""

    path: tuple[str, ...]
    outcome: Outcome
    field: Field | None = None
    value: Any = None

    @property
    def refused(self) -> bool:
        return self.outcome in REFUSALS


class Reading(NamedTuple):
    """``values`` holds, by block, the fields that were set, under their short names."""

    entries: Mapping[tuple[str, ...], Entry]
    values: Mapping[tuple[str, ...], Mapping[str, Any]]

    def at(self, path: tuple[str, ...]) -> Entry | None:
        return self.entries.get(path)


def read(config: Mapping[str, Any], version: Version) -> Reading:
    """Apply the typed blocks of a release to a config."""
    entries: dict[tuple[str, ...], Entry] = {}
    values: dict[tuple[str, ...], dict[str, Any]] = {}
    for block in BLOCKS:
        if block.path[0] not in config or _is_shadowed(block, config):
            continue
        content = value_at(config, block.path)
        if content is ABSENT or (content == AUTO and block.text_auto_is_absent):
            continue
        if block.is_strict(version):
            values[block.path] = _read_block(block, content, version, entries)
        elif is_block(content):
            values[block.path] = _as_written(block, content, version)
    return Reading(entries, values)


def _is_shadowed(block: Block, config: Mapping[str, Any]) -> bool:
    """The old name bfloat16 is read only where bf16 is absent or null."""
    return block.path == ("bfloat16",) and config.get("bf16") is not None


def _as_written(block: Block, content: dict[str, Any], version: Version) -> dict[str, Any]:
    """The keys a release without models for the block reads, unchecked."""
    names = block.names
    return {
        names[key].name: value
        for key, value in content.items()
        if key in names and names[key].exists(version)
    }


def _read_block(
    block: Block, content: Any, version: Version, entries: dict[tuple[str, ...], Entry]
) -> dict[str, Any]:
    if not is_block(content):
        allowed = (content is None and block.nullable) or (
            isinstance(content, bool) and block.path == ("zero_optimization",)
        )
        if not allowed:
            entries[block.path] = Entry(block.path, Outcome.NOT_A_BLOCK)
        return {}
    values: dict[str, Any] = {}
    keep_auto = bool(content.get("strict", False))
    for key, value in content.items():
        entry = _read_key(block, (*block.path, key), value, version, keep_auto)
        if entry.outcome is Outcome.CONVERTED or entry.refused:
            entries[entry.path] = entry
        elif entry.outcome in (Outcome.DROPPED, Outcome.SWALLOWED):
            entries[entry.path] = entry
            continue
        if entry.field is not None and not entry.refused:
            values[entry.field.name] = entry.value
    _mark_twice(block, content, version, entries)
    return values


def _read_key(
    block: Block, path: tuple[str, ...], value: Any, version: Version, keep_auto: bool
) -> Entry:
    key = path[-1]
    if key == "strict":
        return Entry(path, Outcome.SWALLOWED)
    if value == AUTO and block.drops_auto(version) and not keep_auto and key != "replace_method":
        return Entry(path, Outcome.DROPPED, block.names.get(key))
    known = block.names.get(key)
    if known is None:
        return Entry(path, Outcome.UNKNOWN)
    if not known.exists(version):
        outcome = Outcome.NOT_YET if version < known.since else Outcome.GONE
        return Entry(path, outcome, known)
    if known.kind is Kind.BLOCK and value == AUTO:
        return Entry(path, Outcome.BAD_TYPE, known)
    if known.kind is Kind.BLOCK or (value is None and known.nullable):
        return Entry(path, Outcome.TAKEN, known, value)
    return _read_value(known, path, value, version)


def _read_value(known: Field, path: tuple[str, ...], value: Any, version: Version) -> Entry:
    try:
        converted = convert(known.kind, value, version)
    except Refused:
        return Entry(path, Outcome.BAD_TYPE, known)
    bounds = known.bounds_at(version)
    if bounds is not None and not bounds.hold(converted):
        return Entry(path, Outcome.OUT_OF_BOUNDS, known)
    if type(converted) is type(value) or _same_number(converted, value):
        return Entry(path, Outcome.TAKEN, known, converted)
    return Entry(path, Outcome.CONVERTED, known, converted)


def _same_number(one: Any, other: Any) -> bool:
    """5e8 and 500000000; true and 1 are not the same."""
    numbers = isinstance(one, (int, float)) and isinstance(other, (int, float))
    return numbers and isinstance(one, bool) == isinstance(other, bool) and one == other


def _mark_twice(
    block: Block,
    content: Mapping[str, Any],
    version: Version,
    entries: dict[tuple[str, ...], Entry],
) -> None:
    for known in block.fields.values():
        if known.long_name is None or known.long_name not in content or known.name not in content:
            continue
        path = (*block.path, known.name)
        dropped = [
            name
            for name in (known.name, known.long_name)
            if (entry := entries.get((*block.path, name))) and entry.outcome is Outcome.DROPPED
        ]
        if not dropped:
            entries[path] = Entry(path, Outcome.TWICE, known)
