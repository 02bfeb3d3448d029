"""DeepSpeed's typed blocks applied to a config: what each key becomes, and what is refused."""

from collections.abc import Mapping
from enum import StrEnum
from functools import lru_cache
from typing import Any, NamedTuple

from dsconfig.runtimes.coercion import OWN_LIMITS, Refused, convert
from dsconfig.schema import former
from dsconfig.schema.catalogue import BlockKey, Key, block_at, blocks_in, field_of
from dsconfig.schema.declare import Kind
from dsconfig.schema.version import Version
from dsconfig.source.pointer import is_block

AUTO = "auto"


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
    field: Key | None = None
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


class TypedBlock:
    """A block that some releases check with a model of their own."""

    def __init__(self, declared: BlockKey) -> None:
        self.declared = declared
        self.path = declared.path
        self.nested = declared.nested
        self._drops_auto = Version.parse(declared.owner.life.drops_auto)

    def is_strict(self, version: Version) -> bool:
        """Whether that release checks the block."""
        return self.declared.owner.life.is_closed_at(version)

    def drops_auto(self, version: Version) -> bool:
        """Whether keys with the value "auto" are removed before the block is checked."""
        return self._drops_auto <= version

    def field(self, name: str) -> Key | None:
        """The key under one of its names, if any release of DeepSpeed read it."""
        known = field_of(self.declared, name)
        return known if known is not None and known.since is not None else None


@lru_cache(maxsize=256)
def _typed(declared: BlockKey) -> TypedBlock | None:
    if not declared.owner.life.closed or declared.key.kind is not Kind.BLOCK:
        return None
    return TypedBlock(declared)


def typed_block(path: tuple[str, ...]) -> TypedBlock | None:
    """The block with a model at a path; None where there is none."""
    declared = block_at(path)
    return _typed(declared) if declared is not None else None


def read(config: Mapping[str, Any], version: Version) -> Reading:
    """Apply the typed blocks of a release to a config."""
    entries: dict[tuple[str, ...], Entry] = {}
    values: dict[tuple[str, ...], dict[str, Any]] = {}
    for declared, content in blocks_in(config):
        block = _typed(declared)
        if block is None or _is_shadowed(block, config) or (content == AUTO and block.nested):
            continue
        if block.is_strict(version):
            values[block.path] = _read_block(block, content, version, entries)
        elif is_block(content):
            values[block.path] = _as_written(block, content, version)
    return Reading(entries, values)


def _is_shadowed(block: TypedBlock, config: Mapping[str, Any]) -> bool:
    return block.path == ("bfloat16",) and former.bf16_block(config) != "bfloat16"


def _as_written(block: TypedBlock, content: dict[str, Any], version: Version) -> dict[str, Any]:
    """The keys a release without models for the block reads, unchecked."""
    known = {key: block.field(key) for key in content}
    return {
        found.model_name: content[key]
        for key, found in known.items()
        if found is not None and found.read_at(version)
    }


def _read_block(
    block: TypedBlock, content: Any, version: Version, entries: dict[tuple[str, ...], Entry]
) -> dict[str, Any]:
    if not is_block(content):
        allowed = (content is None and block.declared.key.takes_null) or (
            isinstance(content, bool) and block.path == ("zero_optimization",)
        )
        if not allowed:
            entries[block.path] = Entry(block.path, Outcome.NOT_A_BLOCK)
        return {}
    values: dict[str, Any] = {}
    keep_auto = bool(content.get("strict", False))
    for key, value in content.items():
        entry = _read_key(block, (*block.path, key), value, version, keep_auto)
        if entry.outcome is not Outcome.TAKEN:
            entries[entry.path] = entry
        if entry.outcome in (Outcome.TAKEN, Outcome.CONVERTED) and entry.field is not None:
            values[entry.field.model_name] = entry.value
    _mark_twice(block, content, entries)
    return values


def _read_key(
    block: TypedBlock, path: tuple[str, ...], value: Any, version: Version, keep_auto: bool
) -> Entry:
    key = path[-1]
    if key == "strict":
        return Entry(path, Outcome.SWALLOWED)
    if value == AUTO and block.drops_auto(version) and not keep_auto and key != "replace_method":
        return Entry(path, Outcome.DROPPED, block.field(key))
    known = block.field(key)
    if known is None:
        return Entry(path, Outcome.UNKNOWN)
    if not known.read_at(version):
        outcome = Outcome.NOT_YET if version < (known.since or version) else Outcome.GONE
        return Entry(path, outcome, known)
    if known.kind is Kind.BLOCK and value == AUTO:
        return Entry(path, Outcome.BAD_TYPE, known)
    if known.kind is Kind.BLOCK or (value is None and known.takes_null):
        return Entry(path, Outcome.TAKEN, known, value)
    return _read_value(known, path, value, version)


def _read_value(known: Key, path: tuple[str, ...], value: Any, version: Version) -> Entry:
    try:
        converted = convert(known.kind, value, version, known.choices)
    except Refused:
        return Entry(path, Outcome.BAD_TYPE, known)
    bounds = known.bounds_at(version)
    if known.kind not in OWN_LIMITS and not bounds.hold(converted):
        return Entry(path, Outcome.OUT_OF_BOUNDS, known)
    if type(converted) is type(value) or _same_number(converted, value):
        return Entry(path, Outcome.TAKEN, known, converted)
    return Entry(path, Outcome.CONVERTED, known, converted)


def _same_number(one: Any, other: Any) -> bool:
    """5e8 and 500000000; true and 1 are not the same."""
    numbers = isinstance(one, (int, float)) and isinstance(other, (int, float))
    return numbers and isinstance(one, bool) == isinstance(other, bool) and one == other


def _mark_twice(
    block: TypedBlock, content: Mapping[str, Any], entries: dict[tuple[str, ...], Entry]
) -> None:
    for key in content:
        known = block.field(key)
        if known is None or key == known.name or known.name not in content:
            continue
        both = [entries.get((*block.path, name)) for name in (key, known.name)]
        if not any(entry is not None and entry.outcome is Outcome.DROPPED for entry in both):
            path = (*block.path, key)
            entries[path] = Entry(path, Outcome.TWICE, known)


def expected(key: Key, version: Version, *, limits: bool) -> str:
    """What DeepSpeed's model takes for a key, in words; with the limits of the release."""
    words = [f'"{word}"' for word in key.choices]
    text = " or ".join([", ".join(words[:-1]), words[-1]]) if key.kind is Kind.CHOICE else key.kind
    bounds = key.bounds_at(version).in_words() if limits else ""
    text = f"{text.strip()}, {bounds}" if bounds else text.strip()
    return f"{text} or null" if key.takes_null else text
