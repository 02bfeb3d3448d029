"""The findings of one or several files."""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from dsconfig.report import writers
from dsconfig.report.diagnostic import Diagnostic, Effect, Severity
from dsconfig.report.sizes import counted

_SEVERITY_ORDER = {severity: rank for rank, severity in enumerate(Severity)}


def in_order(diagnostics: Iterable[Diagnostic]) -> tuple[Diagnostic, ...]:
    """Sort by severity, then position (none first), code and pointer."""

    def key(diagnostic: Diagnostic) -> tuple[int, int, int, str, str, str]:
        start = diagnostic.range.start if diagnostic.range else None
        line, column = (start.line, start.column) if start else (0, 0)
        severity = _SEVERITY_ORDER[diagnostic.severity]
        return (severity, line, column, diagnostic.code, diagnostic.pointer, diagnostic.message)

    return tuple(sorted(diagnostics, key=key))


class Report(NamedTuple):
    """The findings of ``validate`` for one config."""

    diagnostics: tuple[Diagnostic, ...]

    def __repr__(self) -> str:
        return f"<Report: {self.summary}>"

    def _repr_html_(self) -> str:
        return writers.html_table(
            f"Report: {self.summary}",
            ("severity", "rule", "key", "message", "help"),
            (
                (
                    finding.severity,
                    finding.code,
                    finding.pointer,
                    finding.message,
                    finding.help or "",
                )
                for finding in self.diagnostics
            ),
        )

    @property
    def summary(self) -> str:
        """The number of findings by severity: ``2 errors, 1 warning``."""
        groups = ((self.errors, "error"), (self.warnings, "warning"), (self.notes, "note"))
        counts = [counted(len(group), noun) for group, noun in groups if group]
        return ", ".join(counts) or "no findings"

    @property
    def ok(self) -> bool:
        """True if there are no errors."""
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
        """Findings that make the target program stop; an engine stops only for these."""
        return tuple(finding for finding in self.diagnostics if finding.effect is Effect.REFUSED)

    def at(self, severity: Severity) -> tuple[Diagnostic, ...]:
        return tuple(finding for finding in self.diagnostics if finding.severity is severity)


class Cause(NamedTuple):
    """A finding, grouped with equal findings about other keys of the same block."""

    first: Diagnostic
    others: tuple[Diagnostic, ...] = ()

    @property
    def also(self) -> str:
        """The other keys with their lines, or some lines of findings without a key; empty if there
        are none."""
        named = [_named(finding) for finding in self.others if finding.pointer]
        return ", ".join(
            [*named, *_lines([finding for finding in self.others if not finding.pointer])]
        )


def group_by_cause(findings: Iterable[Diagnostic]) -> list[Cause]:
    """Group findings that differ only in the key, in their order."""
    groups: dict[object, list[Diagnostic]] = {}
    for finding in findings:
        groups.setdefault(_cause_key(finding), []).append(finding)
    return [Cause(first, tuple(others)) for first, *others in groups.values()]


def _cause_key(finding: Diagnostic) -> object:
    """Return what findings of one cause have in common: everything but the key and its value."""
    if finding.file:
        return finding.code, finding.effect, finding.late, finding.runtimes, finding.message
    block, _, key = finding.pointer.rpartition("/")
    help = (finding.help or "").replace(key, "") if key else finding.help
    return finding.code, finding.effect, finding.late, finding.runtimes, block, help


def _named(finding: Diagnostic) -> str:
    key = finding.pointer.rpartition("/")[2]
    return f"{key} (line {finding.range.start.line})" if finding.range else key


MOST_LINES = 5
"""Lines that are listed of findings without a key."""


def _lines(findings: list[Diagnostic]) -> list[str]:
    """Return ``lines 10, 24, 28, 29, 30 and 14 more`` as a list of at most one text."""
    lines = list(
        dict.fromkeys(str(finding.range.start.line) for finding in findings if finding.range)
    )
    if not lines:
        return [f"{len(findings)} more"] if findings else []
    more = f" and {len(lines) - MOST_LINES} more" if len(lines) > MOST_LINES else ""
    noun = "line" if len(lines) == 1 else "lines"
    return [f"{noun} {', '.join(lines[:MOST_LINES])}{more}"]


class FileTarget(NamedTuple):
    """The program that a file was checked for, and the DeepSpeed release.

    ``runtime`` is "all" for all programs; ``inferred_from`` states the evidence, None if the user
    specified the program. ``fills`` counts the "auto" values that the program fills in; ``ranks``
    is the only number of data-parallel ranks that the batch size allows, or None.
    """

    runtime: str
    release: str
    inferred_from: str | None = None
    described: str = ""
    fills: int = 0
    ranks: int | None = None


class FileReport(NamedTuple):
    """A report with the name and text of its file."""

    file: str
    text: str | None
    report: Report
    target: FileTarget | None = None

    def by_file(self) -> "list[FileReport]":
        """Return this report, without findings in other files, and a report for each of those."""
        others = dict.fromkeys(finding.file for finding in self.report.diagnostics if finding.file)
        if not others:
            return [self]
        return [
            self._replace(report=self._in_file(None)),
            *(FileReport(name, _text(name), self._in_file(name), self.target) for name in others),
        ]

    def _in_file(self, name: str | None) -> Report:
        return Report(tuple(finding for finding in self.report.diagnostics if finding.file == name))


def _text(name: str) -> str | None:
    try:
        return Path(name).read_text("utf-8-sig")
    except (OSError, ValueError):
        return None
