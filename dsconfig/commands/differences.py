"""What differs in meaning between two configs."""

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
    """One difference; ``before`` and ``after`` are values or words, ``why`` may be empty."""

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
    """What the second config does differently."""
    one, other = meaning(first, before), meaning(second, after)
    paths = dict.fromkeys([*one.settings, *other.settings])
    changes = [
        Change(join(*path), one.value(path), other.value(path), _whose_default(path, one, other))
        for path in paths
        if one.value(path) != other.value(path)
    ]
    return [
        *changes,
        *_unread(one, other, "only the first has it, and it is not read"),
        *_unread(other, one, "only the second has it, and it is not read"),
    ]


def _whose_default(path: Path, one: Meaning, other: Meaning) -> str:
    if path not in one.settings:
        return "absent in the first: its default"
    return "" if path in other.settings else "absent in the second: its default"


def _unread(one: Meaning, other: Meaning, why: str) -> Iterator[Change]:
    for path in one.unread:
        if path not in other.unread:
            yield Change(join(*path), "unread", "unread", why)
