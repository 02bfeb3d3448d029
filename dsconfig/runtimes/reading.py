"""DeepSpeed's typed blocks applied to a config: the outcome for each key."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, NamedTuple

from dsconfig.runtimes.coercion import OWN_LIMITS, Refused, convert
from dsconfig.schema import former_names
from dsconfig.schema.catalogue import BlockKey, Key, block_at, blocks_in, field_of
from dsconfig.schema.declare import ReadAs
from dsconfig.schema.markers import AUTO
from dsconfig.schema.paths import ZERO, KeyPath
from dsconfig.schema.version import Version
from dsconfig.source.pointer import is_block


class Outcome(StrEnum):
    """Outcome for a key of a typed block."""

    TAKEN = "taken"
    CONVERTED = "converted"
    """Converted from another type."""
    DROPPED = "dropped"
    """"auto", removed before the block is validated."""
    SWALLOWED = "swallowed"
    """The key ``strict``, which the models consume themselves."""
    UNKNOWN = "unknown"
    TWICE = "twice"
    """Set under both of its names."""
    NOT_YET = "not yet"
    GONE = "gone"
    BAD_TYPE = "bad type"
    OUT_OF_BOUNDS = "out of bounds"
    NOT_A_BLOCK = "not a block"


PASSED = frozenset({Outcome.TAKEN, Outcome.CONVERTED, Outcome.DROPPED, Outcome.SWALLOWED})
"""Outcomes that do not stop DeepSpeed."""


class Entry(NamedTuple):
    """A key that was not taken as is. ``value`` is the result."""

    path: KeyPath
    outcome: Outcome
    field: Key | None = None
    value: Any = None

    @property
    def refused(self) -> bool:
        return self.outcome not in PASSED


class Reading(NamedTuple):
    """``values`` are the fields that were set, by block, under their model names."""

    entries: Mapping[KeyPath, Entry]
    values: Mapping[KeyPath, Mapping[str, Any]]

    def at(self, path: KeyPath) -> Entry | None:
        return self.entries.get(path)


def _is_typed(block: BlockKey) -> bool:
    """Return whether a release validates the block with a model."""
    return bool(block.owner.history.closed) and block.key.kind is ReadAs.BLOCK


def typed_block(path: tuple[str, ...]) -> BlockKey | None:
    """Return the typed block at a path, or None."""
    block = block_at(path)
    return block if block is not None and _is_typed(block) else None


def field_in(block: BlockKey, name: str) -> Key | None:
    """Return the key of a block under one of its names, if any release reads it."""
    known = field_of(block, name)
    return known if known is not None and known.since is not None else None


def read(config: Mapping[str, Any], version: Version) -> Reading:
    """Apply the typed blocks of a release to a config."""
    entries: dict[KeyPath, Entry] = {}
    values: dict[KeyPath, dict[str, Any]] = {}
    for block, content in blocks_in(config):
        is_shadowed = block.path == ("bfloat16",) and former_names.bf16_block(config) != "bfloat16"
        if not _is_typed(block) or is_shadowed or (content == AUTO and block.nested):
            continue
        if block.owner.history.is_closed_at(version):
            values[block.path] = _read_block(block, content, version, entries)
        elif is_block(content):  # a release without models does not validate it
            known = {key: field_in(block, key) for key in content}
            values[block.path] = {
                found.model_name: content[key]
                for key, found in known.items()
                if found is not None and found.read_at(version)
            }
    return Reading(entries, values)


def _read_block(
    block: BlockKey, content: Any, version: Version, entries: dict[KeyPath, Entry]
) -> dict[str, Any]:
    if not is_block(content):
        allowed = (content is None and block.key.takes_null) or (
            isinstance(content, bool) and block.path == ZERO
        )
        if not allowed:
            entries[block.path] = Entry(block.path, Outcome.NOT_A_BLOCK)
        return {}
    values: dict[str, Any] = {}
    keep_auto = bool(content.get("strict", False))
    for key, value in content.items():
        entry = _read_key(block, block.path / key, value, version, keep_auto)
        if entry.outcome is not Outcome.TAKEN:
            entries[entry.path] = entry
        if entry.outcome in (Outcome.TAKEN, Outcome.CONVERTED) and entry.field is not None:
            values[entry.field.model_name] = entry.value
    _mark_twice(block, content, entries)
    return values


def _read_key(
    block: BlockKey, path: KeyPath, value: Any, version: Version, keep_auto: bool
) -> Entry:
    key = path[-1]
    if key == "strict":
        return Entry(path, Outcome.SWALLOWED)
    known = field_in(block, key)
    history = block.owner.history
    if (
        value == AUTO
        and history.ignores_auto_at(version)
        and not keep_auto
        and key != "replace_method"
    ):
        return Entry(path, Outcome.DROPPED, known)
    if known is None:
        return Entry(path, Outcome.UNKNOWN)
    if not known.read_at(version):
        outcome = Outcome.NOT_YET if version < (known.since or version) else Outcome.GONE
        return Entry(path, outcome, known)
    if known.kind is ReadAs.BLOCK and value == AUTO:
        return Entry(path, Outcome.BAD_TYPE, known)
    if known.kind is ReadAs.BLOCK or (value is None and known.takes_null):
        return Entry(path, Outcome.TAKEN, known, value)
    return _read_value(known, path, value, version)


def _read_value(known: Key, path: KeyPath, value: Any, version: Version) -> Entry:
    try:
        converted = convert(known.kind, value, version, known.choices)
    except Refused:
        return Entry(path, Outcome.BAD_TYPE, known)
    if known.kind not in OWN_LIMITS and not known.bounds_at(version).contains(converted):
        return Entry(path, Outcome.OUT_OF_BOUNDS, known)
    # 5e8 equals 500000000 and is unchanged; true and 1 differ.
    numbers = isinstance(converted, (int, float)) and isinstance(value, (int, float))
    alike = isinstance(converted, bool) == isinstance(value, bool)
    same = type(converted) is type(value) or (numbers and alike and converted == value)
    return Entry(path, Outcome.TAKEN if same else Outcome.CONVERTED, known, converted)


def _mark_twice(block: BlockKey, content: Mapping[str, Any], entries: dict[KeyPath, Entry]) -> None:
    for key in content:
        known = field_in(block, key)
        if known is None or key == known.name or known.name not in content:
            continue
        both = [entries.get(block.path / name) for name in (key, known.name)]
        if not any(entry is not None and entry.outcome is Outcome.DROPPED for entry in both):
            path = block.path / key
            entries[path] = Entry(path, Outcome.TWICE, known)


def expected(key: Key, version: Version, *, limits: bool) -> str:
    """Return a description of the values that DeepSpeed's model accepts."""
    words = [f'"{word}"' for word in key.choices]
    text = (
        " or ".join([", ".join(words[:-1]), words[-1]]) if key.kind is ReadAs.CHOICE else key.kind
    )
    bounds = key.bounds_at(version).describe() if limits else ""
    text = f"{text.strip()}, {bounds}" if bounds else text.strip()
    return f"{text} or null" if key.takes_null else text
