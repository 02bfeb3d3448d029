"""Write findings to stdout, and the summary and everything else to stderr."""

import sys
from collections import Counter
from collections.abc import Sequence

from dsconfig.commands.printing import error_line, print_text
from dsconfig.lazy_imports import lazy_imports
from dsconfig.project.errors import UsageError
from dsconfig.report import Applicability, FileReport, Severity, writers
from dsconfig.report.render import FOR_PEOPLE, FORMATS, render
from dsconfig.report.render.terminal import look_of, paint
from dsconfig.report.report import group_by_cause
from dsconfig.report.sizes import counted
from dsconfig.report.writers import one_line
from dsconfig.source.findings import UNREADABLE

with lazy_imports():
    from dsconfig.commands import text_table


class Output:
    """Output of one run of ``validate``."""

    def __init__(
        self, form: str, *, quiet: bool, error_on_warning: bool = False, statistics: bool = False
    ) -> None:
        if form not in FORMATS:
            known = ", ".join(FORMATS)
            raise UsageError(f"--output-format: {form!r} is not one of {known}")
        if statistics and form not in FOR_PEOPLE:
            raise UsageError(f"--statistics: choose the output format {' or '.join(FOR_PEOPLE)}")
        self.form = form
        self.statistics = statistics
        self.quiet = quiet
        self.error_on_warning = error_on_warning

    def findings(self, reports: Sequence[FileReport], *, to_stderr: bool = False) -> None:
        """Print the findings; to stderr if stdout contains a fixed config."""
        stream = sys.stderr if to_stderr else sys.stdout
        if self.form in FOR_PEOPLE:
            for file in reports:
                if is_unreadable(file):
                    (finding,) = file.report.diagnostics
                    error_line(f"{file.file}: {finding.message}; {finding.help}")
            reports = [file for file in reports if not is_unreadable(file)]
        if self.statistics:
            stream.write(_statistics(reports))
            return
        strict = self.error_on_warning
        text = render(self.form, reports, look_of(stream), error_on_warning=strict)
        if self.form in FOR_PEOPLE:
            print_text(text, err=to_stderr, nl=False)
        else:
            stream.write(text)

    def diff(self, text: str) -> None:
        """Print a unified diff, in color on a terminal."""
        look = look_of(sys.stdout)
        for body in text.removesuffix("\n").split("\n") if text else ():
            style = {"+": "added", "-": "removed", "@": "frame"}.get(body[:1])
            print_text(paint(one_line(body), style, look) if style else one_line(body))

    def note(self, text: str, style: str = "") -> None:
        """Print a line to stderr, unless quiet."""
        if not self.quiet:
            line = text_table.fitted(text)
            print_text(paint(line, style, look_of(sys.stderr)) if style else line, err=True)

    def heading(self, reports: Sequence[FileReport]) -> None:
        """Print the target program of the files, one line per program."""
        if self.form not in FOR_PEOPLE:
            return
        groups: dict[str, list[FileReport]] = {}
        for file in reports:
            if file.target is not None and not any(
                finding.code == UNREADABLE for finding in file.report.diagnostics
            ):
                groups.setdefault(file.target.described, []).append(file)
        for described, files in groups.items():
            name = files[0].file if len(files) == 1 else counted(len(files), "file")
            fills = sum(file.target.fills for file in files if file.target)
            values = "value" if fills == 1 else "values"
            filled = f'; {fills} "auto" {values} filled in at run time' if fills else ""
            ranks = files[0].target.ranks if len(files) == 1 and files[0].target else None
            fixed = f"; its batch sizes require {counted(ranks, 'rank')}" if ranks else ""
            self.note(f"{one_line(name)}: {described}{filled}{fixed}")

    def summary(
        self,
        reports: Sequence[FileReport],
        suppressed: int | None = None,
        *,
        given: Sequence[str] = (),
    ) -> None:
        """Print ``3 files, 0 errors, 1 warning; 1 fixable: dsconfig validate --fix a.json``.

        ``suppressed``: number of findings of the baseline; None without a baseline.
        ``given``: files and folders of the command line.
        """
        baseline = "" if suppressed is None else f"{suppressed} suppressed by the baseline"
        if self.form not in FOR_PEOPLE:
            if baseline:
                self.note(baseline)
            return
        readable = [file for file in reports if not is_unreadable(file)]
        findings = [
            cause.first for file in readable for cause in group_by_cause(file.report.diagnostics)
        ]
        counts = [counted(len(reports), "file")]
        for severity, noun in NOUNS.items():
            number = sum(finding.severity is severity for finding in findings)
            if number or severity is not Severity.INFO:
                counts.append(counted(number, noun))
        if len(readable) < len(reports):
            counts.append(f"{len(reports) - len(readable)} unreadable")
        counts += [baseline] if baseline else []
        severities = {finding.severity for finding in findings}
        problems = (Severity.ERROR, Severity.WARNING)
        style = next((severity for severity in problems if severity in severities), "good")
        self.note(", ".join(counts) + _fixable(reports, given), style)


def _statistics(reports: Sequence[FileReport]) -> str:
    """Return a line per rule: how often it reports, in how many files; the most frequent first."""
    found = [(finding, file.file) for file in reports for finding in file.report.diagnostics]
    counts = Counter((finding.code, finding.name) for finding, _ in found)
    files = Counter(code for code, _ in {(finding.code, file) for finding, file in found})
    table = text_table.TextTable(">findings", ">files", "rule", "")
    for (code, name), count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        table.add_row(f"{count:,}", f"{files[code]:,}", code, name)
    return f"{table}\n" if counts else ""


def is_unreadable(file: FileReport) -> bool:
    """Return whether a file cannot be read at all, so that its finding has no position."""
    findings = file.report.diagnostics
    return len(findings) == 1 and findings[0].code == UNREADABLE and findings[0].range is None


NOUNS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}
FLAGS = {Applicability.SAFE: "--fix", Applicability.UNSAFE: "--unsafe-fixes"}


MOST_GIVEN = 3
"""Files and folders that the command that fixes findings repeats."""


def _fixable(reports: Sequence[FileReport], given: Sequence[str]) -> str:
    """Return the number of fixable findings, and the command that fixes them."""
    text = ""
    for applicability, flag in FLAGS.items():
        names = [
            file.file
            for file in reports
            for finding in file.report.diagnostics
            if finding.fix is not None and finding.fix.applicability is applicability
        ]
        if names:
            several = writers.shell(given or ["."]) if len(given) <= MOST_GIVEN else "FILES"
            files = writers.shell(names[:1]) if len(set(names)) == 1 else several
            text += f"; {len(names)} fixable: dsconfig validate {flag} {files}"
    return text
