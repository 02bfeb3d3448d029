"""Findings to stdout, the summary and everything else to stderr."""

import sys
from collections.abc import Sequence

from dsconfig.commands.errors import UsageError
from dsconfig.lazy_imports import lazy_imports
from dsconfig.report import Applicability, FileReport, Severity
from dsconfig.report.render import FOR_PEOPLE, FORMATS, render
from dsconfig.report.render.terminal import look_of, one_line, paint
from dsconfig.report.report import by_cause
from dsconfig.report.sizes import counted
from dsconfig.source.findings import UNREADABLE

with lazy_imports():
    from dsconfig.commands import text_table


class Output:
    """How one run of ``validate`` speaks."""

    def __init__(self, form: str, *, quiet: bool) -> None:
        if form not in FORMATS:
            known = ", ".join(FORMATS)
            raise UsageError(f"--output-format: {form!r} is not one of {known}")
        self.form = form
        self.quiet = quiet

    def findings(self, reports: Sequence[FileReport], *, aside: bool = False) -> None:
        """Print the findings; ``aside`` to stderr, where stdout holds a fixed config."""
        stream = sys.stderr if aside else sys.stdout
        stream.write(render(self.form, reports, look_of(stream)))

    def diff(self, text: str) -> None:
        """Print a unified diff, coloured where the terminal shows it."""
        look = look_of(sys.stdout)
        for line in text.splitlines(keepends=True):
            style = {"+": "added", "-": "removed", "@": "frame"}.get(line[:1])
            body = line.rstrip("\n")
            sys.stdout.write((paint(body, style, look) if style else body) + "\n")

    def note(self, text: str) -> None:
        if not self.quiet:
            sys.stderr.write(f"{text_table.fitted(text)}\n")

    def heading(self, reports: Sequence[FileReport]) -> None:
        """Who runs the files, one line for each program, and what it fills in by itself."""
        if self.form not in FOR_PEOPLE:
            return
        groups: dict[str, list[FileReport]] = {}
        for file in reports:
            # Nobody runs what cannot be read.
            unread = any(found.code == UNREADABLE for found in file.report.diagnostics)
            if file.target is not None and not unread:
                groups.setdefault(file.target.described, []).append(file)
        for described, files in groups.items():
            name = files[0].file if len(files) == 1 else counted(len(files), "file")
            fills = sum(file.target.fills for file in files if file.target)
            filled = f'; {fills} "auto" it fills in' if fills else ""
            ranks = files[0].target.ranks if len(files) == 1 and files[0].target else None
            fixed = f"; its batch sizes fix {counted(ranks, 'rank')}" if ranks else ""
            self.note(f"{one_line(name)}: {described}{filled}{fixed}")

    def summary(self, reports: Sequence[FileReport]) -> None:
        """``3 files, 0 errors, 1 warning, 2 notes; 1 fixable: dsconfig validate --fix ds.json``."""
        if self.form not in FOR_PEOPLE:
            return
        found = [each.first for file in reports for each in by_cause(file.report.diagnostics)]
        told = [counted(len(reports), "file")]
        for severity, noun in NOUNS.items():
            number = sum(each.severity is severity for each in found)
            if number or severity is not Severity.INFO:
                told.append(counted(number, noun))
        self.note(", ".join(told) + _fixable(reports))


NOUNS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}
FLAGS = {Applicability.SAFE: "--fix", Applicability.UNSAFE: "--unsafe-fixes"}


def _fixable(reports: Sequence[FileReport]) -> str:
    """How many findings a command can mend, and which command."""
    said = ""
    for applicability, flag in FLAGS.items():
        names = [
            file.file
            for file in reports
            for found in file.report.diagnostics
            if found.fix is not None and found.fix.applicability is applicability
        ]
        if names:
            where = names[0] if len(set(names)) == 1 else "..."
            said += f"; {len(names)} fixable: dsconfig validate {flag} {where}"
    return said
