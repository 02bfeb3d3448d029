"""Findings with the source line, a caret, the effect and the suggested fix."""

import textwrap
from collections.abc import Sequence

from dsconfig.report.diagnostic import Applicability, Effect, Range, Severity
from dsconfig.report.render.terminal import Look, paint
from dsconfig.report.report import Cause, FileReport, group_by_cause
from dsconfig.report.writers import is_control, one_line

TAB = 4
CUT = "..."
BEFORE = 20
"""Columns kept before the caret when a long line is truncated on the left."""
MISSING_FACT = "missing-fact"
LATE = "refused after parsing: the program stops during initialization or in a step"


def render(files: Sequence[FileReport], look: Look) -> str:
    parts: list[str] = []
    for file in files:
        lines = _split(file.text)
        causes = group_by_cause(file.report.diagnostics)
        notes = [cause for cause in causes if cause.first.severity is Severity.INFO]
        problems = [cause for cause in causes if cause.first.severity is not Severity.INFO]
        parts += (_finding(file.file, lines, cause, look) for cause in problems)
        if notes:
            parts.append("".join(_remark(file.file, cause, look) for cause in notes))
    return "\n".join(parts)


def _remark(file: str, cause: Cause, look: Look) -> str:
    """Render an info-level finding as one paragraph without an excerpt."""
    found = cause.first
    head = f"{found.severity}[{found.code}]"
    location = f"{one_line(file)}:{found.range.start.line}" if found.range else one_line(file)
    parts = [one_line(found.message)]
    parts += [f"also {one_line(cause.also)}"] if cause.others else []
    parts += [one_line(found.help)] if found.help else []
    text = _wrap(f"{head}: {location}: {'; '.join(parts)}", look.width, "  ")
    return paint(head, found.severity, look) + text[len(head) :] + "\n"


def _split(text: str | None) -> list[str]:
    """Split into lines at LF, CRLF or CR, as positions count them."""
    if not text:
        return []
    return text.replace("\r\n", "\n").replace("\r", "\n").split("\n")


def _finding(file: str, lines: Sequence[str], cause: Cause, look: Look) -> str:
    found = cause.first
    head = f"{found.severity}[{found.code}]"
    message = _wrap(f"{head}: {one_line(found.message)}", look.width, "  ")
    title = paint(head, found.severity, look) + paint(message[len(head) :], "strong", look)
    out = [title]
    margin = " " * (len(str(found.range.start.line)) if found.range else 1)
    bar = paint("|", "frame", look)
    location = one_line(file)
    if found.range is not None:
        start = found.range.start
        location = f"{location}:{start.line}:{start.column}"
    out.append(f"{margin}{paint('-->', 'frame', look)} {location}")
    if found.range is not None and found.range.start.line <= len(lines):
        line = lines[found.range.start.line - 1]
        columns = look.width - len(margin) - 4
        shown, caret = excerpt(line, found.range, columns)
        number = paint(str(found.range.start.line), "frame", look)
        out += [
            f"{margin} {bar}",
            f"{number} {bar} {shown}".rstrip(),
            f"{margin} {bar} {paint(caret, found.severity, look)}",
        ]
    out += _notes(cause, margin, look)
    return "\n".join(out) + "\n"


def _notes(cause: Cause, margin: str, look: Look) -> list[str]:
    found = cause.first
    notes = [("also", one_line(cause.also))] if cause.others else []
    late = found.late and found.effect is Effect.REFUSED
    effect = LATE if late else f"{found.effect}: {found.effect.meaning}"
    programs = f" ({', '.join(found.runtimes)})" if found.runtimes else ""
    # The program has this fact at run time, so a missing one is no error of the program.
    if found.name != MISSING_FACT:
        notes.append(("effect", f"{effect}{programs}"))
    if found.help:
        notes.append(("help", one_line(found.help)))
    if found.fix is not None:
        flag = "--fix" if found.fix.applicability is Applicability.SAFE else "--unsafe-fixes"
        notes.append(("fix", f"dsconfig can write this for you ({flag})"))
    notes.append(("rule", f"{found.name}, see `dsconfig explain {found.code}`"))
    lines: list[str] = []
    for label, text in notes:
        head = f"{margin} = {label}:"
        wrapped = _wrap(f"{head} {text}", look.width, f"{margin}     ")[len(head) :]
        equals, strong = paint("=", "frame", look), paint(f"{label}:", "strong", look)
        lines.append(f"{margin} {equals} {strong}{wrapped}")
    return lines


def _wrap(text: str, width: int, indent: str) -> str:
    return textwrap.fill(
        text,
        max(width, 40),
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
        drop_whitespace=True,
    )


def excerpt(line: str, location: Range, columns: int) -> tuple[str, str]:
    """Return the displayed part of the line, and the carets below it.

    A range over several lines is marked up to the end of its first line.
    """
    first = min(location.start.column - 1, len(line))
    last = location.end.column - 1 if location.end.line == location.start.line else len(line)
    last = max(min(last, len(line)), first)
    cells = [_cell(character) for character in line]
    left = sum(_width(cell) for cell in cells[:first])
    if left + BEFORE > columns:
        cut = max(0, first - BEFORE)
        cells, first, last = [CUT, *cells[cut:]], first - cut + 1, last - cut + 1
    shown, used = "", 0
    for cell in cells:
        if used + _width(cell) > max(columns, BEFORE):
            shown = shown[: -len(CUT)] + CUT
            break
        shown += cell
        used += _width(cell)
    indent = sum(_width(cell) for cell in cells[:first])
    marked = sum(_width(cell) for cell in cells[first:last])
    return shown, " " * indent + "^" * max(1, min(marked, max(columns, BEFORE) - indent))


def _cell(character: str) -> str:
    """Return how a character is displayed: tabs as blanks, control characters as a dot."""
    if character == "\t":
        return " " * TAB
    return "\u00b7" if is_control(character) else character


def _width(cell: str) -> int:
    if cell.isascii():
        return len(cell)
    import unicodedata

    if unicodedata.combining(cell):
        return 0
    return 2 if unicodedata.east_asian_width(cell) in "WF" else 1
