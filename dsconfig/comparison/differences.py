"""Differences in meaning between two configs."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dsconfig.comparison.read_meaning import read_meaning
from dsconfig.report.writers import one_line
from dsconfig.runtimes.reading import Reading, read
from dsconfig.schema.meaning import SET_BY_STAGE, Meaning
from dsconfig.schema.paths import ZERO, KeyPath
from dsconfig.schema.version import Version
from dsconfig.source.pointer import dotted


@dataclass(frozen=True, slots=True)
class Change:
    """One difference between values, None if unset; ``why`` may be empty.

    The values are equal if only the effect of the key differs.
    """

    pointer: str
    before: Any
    after: Any
    why: str = ""

    def __str__(self) -> str:
        reason = f"  ({self.why})" if self.why else ""
        values = dict.fromkeys(map(_shown, (self.before, self.after)))
        return one_line(f"{dotted(self.pointer)}: {' -> '.join(values)}{reason}")


_LONGEST = 60


def _shown(value: Any) -> str:
    """Return a value as JSON, shortened."""
    if value is None:
        return "unset"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def between_configs(
    first: dict[str, Any], second: dict[str, Any], before: Version, after: Version
) -> list[Change]:
    """Return the differences of the second config."""
    old, new = read_meaning(first, before), read_meaning(second, after)
    paths = dict.fromkeys([*old.settings, *new.settings])
    if old.has_block(ZERO) and new.has_block(ZERO):
        paths |= dict.fromkeys(SET_BY_STAGE)
    changes = (_change(path, old, new) for path in paths)
    return [
        *(change for change in changes if change is not None),
        *_unread(old, new, (read(first, before), read(second, after))),
    ]


def _change(path: KeyPath, old: Meaning, new: Meaning) -> Change | None:
    """Return the difference at a path, or None."""
    before, after = old.value(path), new.value(path)
    ignored = old.ignored_at_stage(path), new.ignored_at_stage(path)
    if before == after and (None not in ignored or ignored[0] == ignored[1]):
        return None
    notes = [_default_note(path, old, new)]
    notes += [
        f"no effect at stage {stage}" for stage in dict.fromkeys(ignored) if stage is not None
    ]
    return Change(path.pointer, before, after, "; ".join(filter(None, notes)))


def _default_note(path: KeyPath, old: Meaning, new: Meaning) -> str:
    sides = [
        side
        for side, config in (("first", old), ("second", new))
        if path not in config.settings and config.value(path) is not None
    ]
    if len(sides) == 2:
        return "default of the stage" if path in SET_BY_STAGE else "default in both"
    return f"default in the {sides[0]}" if sides else ""


def _unread(old: Meaning, new: Meaning, readings: tuple[Reading, ...]) -> Iterator[Change]:
    """Yield the keys of only one config that DeepSpeed does not read."""
    for path in dict.fromkeys([*old.unread, *new.unread]):
        if path not in old.unread or path not in new.unread:
            before, after = old.unread.get(path), new.unread.get(path)
            entries = [reading.at(path) for reading in readings]
            is_rejected = any(entry is not None and entry.refused for entry in entries)
            verb = "rejected" if is_rejected else "not read"
            yield Change(path.pointer, before, after, f"{verb} by DeepSpeed")
