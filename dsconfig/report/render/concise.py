"""One line per finding: ``path:line:column: DSC412 error: message``."""

from collections.abc import Sequence

from dsconfig.report.render.terminal import Look, paint
from dsconfig.report.report import Cause, FileReport, group_by_cause
from dsconfig.report.writers import one_line


def render(files: Sequence[FileReport], look: Look) -> str:
    lines = [
        _line(file.file, cause, look)
        for file in files
        for cause in group_by_cause(file.report.diagnostics)
    ]
    return "".join(f"{line}\n" for line in lines)


def _line(file: str, cause: Cause, look: Look) -> str:
    found = cause.first
    start = found.range.start if found.range else None
    place = f"{one_line(file)}:{start.line}:{start.column}:" if start else f"{one_line(file)}:"
    code = paint(f"{found.code} {found.severity}", found.severity, look)
    also = f" (also {one_line(cause.also)})" if cause.others else ""
    return f"{place} {code}: {one_line(found.message)}{also}"
