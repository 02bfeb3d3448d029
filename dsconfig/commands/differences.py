"""What differs in meaning between two configs, or for one config between two releases."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dsconfig.schema.catalogue import Key, find, keys
from dsconfig.schema.meaning import Meaning, Path, meaning
from dsconfig.schema.version import Version
from dsconfig.source import Document
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
        return f"{dotted(self.pointer)}: {before} -> {after}{reason}"


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


def between_releases(
    config: dict[str, Any], document: Document, before: Version, after: Version
) -> list[Change]:
    """What a config means differently once DeepSpeed is moved from a release to another."""
    one, other = meaning(config, before), meaning(config, after)
    changes = [*_no_longer_read(one, other), *_newly_read(one, other), *_new_defaults(one, other)]
    told = {change.pointer for change in changes}
    changes += _known_faults(document, before, after)
    return [*changes, *_new_refusals(document, before, after, told)]


def _no_longer_read(one: Meaning, other: Meaning) -> Iterator[Change]:
    for path in other.unread:
        key = find(path)
        if path in one.unread or key is None:
            continue
        refused = key.refused_from is not None and key.refused_from <= other.version
        after = "refused" if refused else "not read"
        why = f"last read by {key.until}" if key.until else f"first read by {key.since}"
        yield Change(join(*path), "read", after, why)


def _newly_read(one: Meaning, other: Meaning) -> Iterator[Change]:
    for path in one.unread:
        key = find(path)
        if path not in other.unread and key is not None:
            yield Change(join(*path), "not read", "read", f"read since {key.since}")


def _new_defaults(one: Meaning, other: Meaning) -> Iterator[Change]:
    for key in keys():
        path = tuple(key.path.split("."))
        if not key.earlier_defaults or path in other.settings or not _in_use(path, other):
            continue
        if key.read_at(one.version) and key.read_at(other.version):
            was, now = one.value(path), other.value(path)
            if was != now:
                yield Change(join(*path), was, now, _when(key, one.version, other.version))


def _in_use(path: Path, config: Meaning) -> bool:
    """Whether the block around a key is there and not switched off."""
    block = path[:-1]
    if not block:
        return True
    if not config.has_block(block):
        return False
    switch = find((*block, "enabled"))
    return switch is None or config.value((*block, "enabled")) is not False


def _when(key: Key, before: Version, after: Version) -> str:
    low, high = sorted((before, after))
    releases = [str(changed) for changed, _ in key.earlier_defaults if low < changed <= high]
    return f"the default changed in {' and '.join(releases)}; the file does not set it"


def _known_faults(document: Document, before: Version, after: Version) -> Iterator[Change]:
    """The faults of a release that the move cures, and those that begin with it."""
    from dsconfig import validate
    from dsconfig.checks.known_faults import RANGES

    def faults(version: Version) -> dict[tuple[str, str], Any]:
        found = validate(document, runtime="deepspeed", version=version).diagnostics
        return {(each.code, each.pointer): each for each in found if each.code in RANGES}

    one, other = faults(before), faults(after)
    for place in one.keys() - other.keys():
        yield Change(place[1], "known fault", "cured", f"{place[0]} {one[place].message}")
    for place in other.keys() - one.keys():
        yield Change(place[1], "right", "known fault", f"{place[0]} {other[place].message}")


def _new_refusals(
    document: Document, before: Version, after: Version, told: set[str]
) -> Iterator[Change]:
    """What the later release refuses or alters, and the earlier did not."""
    from dsconfig import validate
    from dsconfig.checks.known_faults import RANGES

    def findings(version: Version) -> dict[tuple[str, str], Any]:
        report = validate(document, runtime="deepspeed", version=version)
        return {
            (found.code, found.pointer): found
            for found in report.errors
            if found.code not in RANGES
        }

    known = findings(before)
    for place, found in findings(after).items():
        if place not in known and found.pointer not in told:
            yield Change(
                found.pointer, "accepted", str(found.effect), f"{found.code} {found.message}"
            )
