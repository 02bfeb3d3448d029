"""Findings that one cause explains, told to people once."""

from collections.abc import Sequence
from typing import NamedTuple

from dsconfig.report.diagnostic import Diagnostic


class Cause(NamedTuple):
    """A finding, and the others that say the same of other keys of the same block."""

    first: Diagnostic
    others: tuple[Diagnostic, ...] = ()

    @property
    def also(self) -> str:
        """The other keys with their lines, in words; empty where there are none."""
        return ", ".join(_named(each) for each in self.others)


def by_cause(found: Sequence[Diagnostic]) -> list[Cause]:
    """The findings in their order, each with those behind it that only the key tells apart."""
    groups: dict[object, list[Diagnostic]] = {}
    for each in found:
        groups.setdefault(_sameness(each), []).append(each)
    return [Cause(first, tuple(others)) for first, *others in groups.values()]


def _sameness(found: Diagnostic) -> object:
    """What two findings of one cause share: all but the key, and the value that it has."""
    block, _, key = found.pointer.rpartition("/")
    help = (found.help or "").replace(key, "") if key else found.help
    return found.code, found.effect, found.late, found.runtimes, block, help


def _named(found: Diagnostic) -> str:
    key = found.pointer.rpartition("/")[2] or "the whole file"
    return f"{key} (line {found.range.start.line})" if found.range else key
