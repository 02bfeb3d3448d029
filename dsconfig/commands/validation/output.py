"""Findings to stdout, the summary and everything else to stderr."""

import sys
from collections.abc import Sequence

from dsconfig.commands.errors import UsageError
from dsconfig.report import FileReport
from dsconfig.report.render import FOR_PEOPLE, FORMATS, render
from dsconfig.report.render.terminal import look_of, paint


class Output:
    """How one run of ``validate`` speaks."""

    def __init__(self, form: str, *, quiet: bool = False) -> None:
        if form not in FORMATS:
            known = ", ".join(FORMATS)
            raise UsageError(f"--output-format: {form!r} is not one of {known}")
        self.form = form
        self.quiet = quiet
        for stream in (sys.stdout, sys.stderr):
            # What the terminal cannot show is written as an escape instead of failing.
            reconfigure = getattr(stream, "reconfigure", None)
            if reconfigure is not None:
                reconfigure(errors="backslashreplace")

    def findings(self, reports: Sequence[FileReport], *, aside: bool = False) -> None:
        """Print the findings; ``aside`` to stderr, where stdout holds a fixed config."""
        stream = sys.stderr if aside else sys.stdout
        look = look_of(stream)
        stream.write(render(self.form, reports, look))

    def text(self, text: str) -> None:
        sys.stdout.write(text)

    def diff(self, text: str) -> None:
        """Print a unified diff, coloured where the terminal shows it."""
        look = look_of(sys.stdout)
        for line in text.splitlines(keepends=True):
            style = {"+": "added", "-": "removed", "@": "frame"}.get(line[:1])
            body = line.rstrip("\n")
            sys.stdout.write((paint(body, style, look) if style else body) + "\n")

    def note(self, text: str) -> None:
        if not self.quiet:
            sys.stderr.write(f"{text}\n")

    def summary(self, reports: Sequence[FileReport]) -> None:
        """``3 files, 0 errors, 1 warning``."""
        if self.form not in FOR_PEOPLE:
            return
        errors = sum(len(file.report.errors) for file in reports)
        warnings = sum(len(file.report.warnings) for file in reports)
        counts = (_counted(len(reports), "file"), _counted(errors, "error"))
        self.note(f"{', '.join(counts)}, {_counted(warnings, 'warning')}")


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
