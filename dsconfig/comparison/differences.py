"""Differences in meaning between two configs."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dsconfig.report.render.terminal import one_line
from dsconfig.schema.meaning import Meaning, Path, meaning
from dsconfig.schema.version import Version
from dsconfig.source.pointer import dotted, join


@dataclass(frozen=True, slots=True)
class Change:
    """One difference between values or states; ``why`` may be empty."""

    pointer: str
    before: Any
    after: Any
    why: str = ""

    def __str__(self) -> str:
        reason = f"  ({self.why})" if self.why else ""
        before, after = (
            json.dumps(value, ensure_ascii=False) for value in (self.before, self.after)
        )
        return one_line(f"{dotted(self.pointer)}: {before} -> {after}{reason}")


def between_configs(
    first: dict[str, Any], second: dict[str, Any], before: Version, after: Version
) -> list[Change]:
    """Return the differences of the second config."""
    old, new = meaning(first, before), meaning(second, after)
    paths = dict.fromkeys([*old.settings, *new.settings])
    changes = [
        Change(join(*path), old.value(path), new.value(path), _default_note(path, old, new))
        for path in paths
        if old.value(path) != new.value(path)
    ]
    return [
        *changes,
        *_unread(old, new, "only in the first; not read by DeepSpeed"),
        *_unread(new, old, "only in the second; not read by DeepSpeed"),
    ]


def _default_note(path: Path, old: Meaning, new: Meaning) -> str:
    if path not in old.settings:
        return "default in the first"
    return "" if path in new.settings else "default in the second"


def _unread(one: Meaning, other: Meaning, why: str) -> Iterator[Change]:
    for path in one.unread:
        if path not in other.unread:
            yield Change(join(*path), "unread", "unread", why)
