"""GitHub Actions workflow commands, which create annotations."""

from collections.abc import Sequence

from dsconfig.report.diagnostic import Diagnostic, Severity
from dsconfig.report.render.terminal import Look, one_line, visible
from dsconfig.report.report import FileReport

COMMANDS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "notice"}


def render(files: Sequence[FileReport], look: Look) -> str:
    lines = [_annotation(file.file, found) for file in files for found in file.report.diagnostics]
    return "".join(f"{line}\n" for line in lines)


def _annotation(file: str, found: Diagnostic) -> str:
    properties = {"file": one_line(file)}
    if found.range is not None:
        start, end = found.range.start, found.range.end
        properties |= {"line": str(start.line), "col": str(start.column)}
        properties |= {"endLine": str(end.line), "endColumn": str(end.column)}
    properties["title"] = f"{found.code} {found.name}"
    listed = ",".join(f"{name}={_escape(value, ':,')}" for name, value in properties.items())
    text = found.message if found.help is None else f"{found.message}\nhelp: {found.help}"
    return f"::{COMMANDS[found.severity]} {listed}::{_escape(visible(text))}"


def _escape(text: str, also: str = "") -> str:
    """Percent-encode characters that would end a command or a property."""
    for character in f"%\r\n{also}":
        text = text.replace(character, f"%{ord(character):02X}")
    return text
