"""The findings of one file, and of one run over many files."""

from collections.abc import Iterable
from typing import NamedTuple

from dsconfig.report.diagnostic import Diagnostic, Effect, Severity

_GRAVITY = {severity: rank for rank, severity in enumerate(Severity)}


def in_order(diagnostics: Iterable[Diagnostic]) -> tuple[Diagnostic, ...]:
    """The gravest first, then by position (unplaced ones first), code and pointer: a stable
    order."""

    def key(diagnostic: Diagnostic) -> tuple[int, int, int, str, str, str]:
        place = diagnostic.range.start if diagnostic.range else None
        line, column = (place.line, place.column) if place else (0, 0)
        gravity = _GRAVITY[diagnostic.severity]
        return (gravity, line, column, diagnostic.code, diagnostic.pointer, diagnostic.message)

    return tuple(sorted(diagnostics, key=key))


class Report(NamedTuple):
    """What ``validate`` found in one config."""

    diagnostics: tuple[Diagnostic, ...]

    @property
    def ok(self) -> bool:
        """True when nothing is at error level."""
        return not self.errors

    @property
    def errors(self) -> tuple[Diagnostic, ...]:
        return self.at(Severity.ERROR)

    @property
    def warnings(self) -> tuple[Diagnostic, ...]:
        return self.at(Severity.WARNING)

    @property
    def notes(self) -> tuple[Diagnostic, ...]:
        return self.at(Severity.INFO)

    @property
    def refusals(self) -> tuple[Diagnostic, ...]:
        """What stops the program: an engine stops for these alone."""
        return tuple(found for found in self.diagnostics if found.effect is Effect.REFUSED)

    def at(self, severity: Severity) -> tuple[Diagnostic, ...]:
        return tuple(found for found in self.diagnostics if found.severity is severity)


class Cause(NamedTuple):
    """A finding, and the others that say the same of other keys of the same block."""

    first: Diagnostic
    others: tuple[Diagnostic, ...] = ()

    @property
    def also(self) -> str:
        """The other keys with their lines, in words; empty where there are none."""
        return ", ".join(_named(each) for each in self.others)


def by_cause(found: Iterable[Diagnostic]) -> list[Cause]:
    """The findings in their order, each with those behind it that only the key tells apart:
    people are told them once.
    """
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


class FileTarget(NamedTuple):
    """The program that a file was judged for, at which release of DeepSpeed.

    ``runtime`` is "all" where every program was asked; ``inferred_from`` says how it was found,
    None where the user named it. ``fills`` counts the "auto" that the program fills; ``ranks`` is
    the only number of data-parallel ranks that the file runs on, None where it runs on any.
    """

    runtime: str
    release: str
    inferred_from: str | None = None
    described: str = ""
    fills: int = 0
    ranks: int | None = None


class FileReport(NamedTuple):
    """A report with the name and text it is about, as the renderers need them."""

    file: str
    text: str | None
    report: Report
    target: FileTarget | None = None
