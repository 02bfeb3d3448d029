"""JUnit XML: one suite per file, one case per finding.

Errors fail, and warnings if they make ``validate`` fail; other findings are the output of a case
that passes. Findings of one cause are one case, so that the counts are those of ``validate``.
"""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from dsconfig.report.diagnostic import Severity
from dsconfig.report.render.terminal import Look
from dsconfig.report.report import Cause, FileReport, group_by_cause
from dsconfig.report.writers import xml

FAILING = frozenset({Severity.ERROR})


def render(files: Sequence[FileReport], look: Look, *, error_on_warning: bool = False) -> str:
    failing = FAILING | {Severity.WARNING} if error_on_warning else FAILING
    causes = [group_by_cause(file.report.diagnostics) for file in files]
    suites = [_suite(file, found, failing) for file, found in zip(files, causes, strict=True)]
    total = sum(max(1, len(found)) for found in causes)
    failures = sum(_failures(found, failing) for found in causes)
    head = f'<testsuites name="dsconfig" tests="{total}" failures="{failures}">'
    body = "\n".join(suites)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{head}\n{body}\n</testsuites>\n'


def _failures(causes: Sequence[Cause], failing: AbstractSet[Severity]) -> int:
    return sum(cause.first.severity in failing for cause in causes)


def _suite(file: FileReport, causes: Sequence[Cause], failing: AbstractSet[Severity]) -> str:
    name = xml(file.file, is_attribute=True)
    cases = "\n".join(_case(cause, name, failing) for cause in causes)
    if not causes:
        cases = f'    <testcase name="valid" classname={name}/>'
    counts = f'tests="{max(1, len(causes))}" failures="{_failures(causes, failing)}"'
    return f"  <testsuite name={name} {counts}>\n{cases}\n  </testsuite>"


def _case(cause: Cause, file: str, failing: AbstractSet[Severity]) -> str:
    found = cause.first
    title = f"{found.code} {found.name} {found.pointer}".rstrip()
    where = (
        f"line {found.range.start.line}, column {found.range.start.column}: " if found.range else ""
    )
    help_ = f"\nhelp: {found.help}" if found.help else ""
    also = f"\nalso: {cause.also}" if cause.others else ""
    text = xml(where + found.message + help_ + also)
    severity, message = (
        xml(each, is_attribute=True) for each in (str(found.severity), found.message)
    )
    kind = f"type={severity} message={message}"
    if found.severity in failing:
        inner = f"<failure {kind}>{text}</failure>"
    else:
        inner = f"<system-out>{found.severity}: {text}</system-out>"
    return f"    <testcase name={xml(title, is_attribute=True)} classname={file}>{inner}</testcase>"
