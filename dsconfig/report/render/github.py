"""GitHub Actions workflow commands, which create annotations."""

from collections.abc import Sequence

from dsconfig.report.diagnostic import Diagnostic, Severity
from dsconfig.report.render.terminal import Look
from dsconfig.report.report import FileReport
from dsconfig.report.writers import workflow_command

COMMANDS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "notice"}


def render(files: Sequence[FileReport], look: Look) -> str:
    lines = [_annotation(file.file, found) for file in files for found in file.report.diagnostics]
    return "".join(f"{line}\n" for line in lines)


def _annotation(file: str, found: Diagnostic) -> str:
    properties = {"file": file}
    if found.range is not None:
        start, end = found.range.start, found.range.end
        properties |= {"line": str(start.line), "col": str(start.column)}
        properties |= {"endLine": str(end.line), "endColumn": str(end.column)}
    properties["title"] = f"{found.code} {found.name}"
    text = found.message if found.help is None else f"{found.message}\nhelp: {found.help}"
    return workflow_command(COMMANDS[found.severity], properties, text)
