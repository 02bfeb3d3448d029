"""JUnit XML: one suite per file, one failing case per error or warning."""

import re
from collections.abc import Sequence
from xml.sax.saxutils import escape, quoteattr

from dsconfig.report.diagnostic import Diagnostic, Severity
from dsconfig.report.render.terminal import Look, visible
from dsconfig.report.report import FileReport

NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that are invalid in XML 1.0."""


def render(files: Sequence[FileReport], look: Look) -> str:
    suites = [_suite(file) for file in files]
    total = sum(max(1, len(file.report.diagnostics)) for file in files)
    failures = sum(_failures(file) for file in files)
    head = f'<testsuites name="dsconfig" tests="{total}" failures="{failures}">'
    body = "\n".join(suites)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{head}\n{body}\n</testsuites>\n'


def _failures(file: FileReport) -> int:
    return sum(found.severity is not Severity.INFO for found in file.report.diagnostics)


def _suite(file: FileReport) -> str:
    found = file.report.diagnostics
    name = _attribute(file.file)
    cases = "\n".join(_case(each, name) for each in found)
    if not found:
        cases = f'    <testcase name="valid" classname={name}/>'
    counts = f'tests="{max(1, len(found))}" failures="{_failures(file)}"'
    return f"  <testsuite name={name} {counts}>\n{cases}\n  </testsuite>"


def _case(found: Diagnostic, file: str) -> str:
    title = f"{found.code} {found.name} {found.pointer}".rstrip()
    where = (
        f"line {found.range.start.line}, column {found.range.start.column}: " if found.range else ""
    )
    text = escape(_xml(where + found.message + (f"\nhelp: {found.help}" if found.help else "")))
    kind = f"type={_attribute(str(found.severity))} message={_attribute(found.message)}"
    if found.severity is Severity.INFO:
        inner = f"<system-out>{text}</system-out>"
    else:
        inner = f"<failure {kind}>{text}</failure>"
    return f"    <testcase name={_attribute(title)} classname={file}>{inner}</testcase>"


def _attribute(text: str) -> str:
    return quoteattr(_xml(text))


def _xml(text: str) -> str:
    return NOT_XML.sub("\ufffd", visible(text))
