"""One line of a config cut to the screen, with a caret under a range of it."""

from dsconfig.report.diagnostic import Range
from dsconfig.report.render.plain import is_control

TAB = 4
CUT = "..."
BEFORE = 20
"""Columns kept before the caret when a long line is cut on the left."""


def excerpt(line: str, place: Range, room: int) -> tuple[str, str]:
    """The line as it is shown, and the carets below it.

    A range that runs over several lines is marked up to the end of its first line.
    """
    first = min(place.start.column - 1, len(line))
    last = place.end.column - 1 if place.end.line == place.start.line else len(line)
    last = max(min(last, len(line)), first)
    cells = [_cell(character) for character in line]
    left = sum(_width(cell) for cell in cells[:first])
    if left + BEFORE > room:
        cells, first, last = _cut_left(cells, first, last)
    shown, used = "", 0
    for cell in cells:
        if used + _width(cell) > max(room, BEFORE):
            shown = shown[: -len(CUT)] + CUT
            break
        shown += cell
        used += _width(cell)
    indent = sum(_width(cell) for cell in cells[:first])
    marked = sum(_width(cell) for cell in cells[first:last])
    return shown, " " * indent + "^" * max(1, min(marked, max(room, BEFORE) - indent))


def _cut_left(cells: list[str], first: int, last: int) -> tuple[list[str], int, int]:
    cut = max(0, first - BEFORE)
    return [CUT, *cells[cut:]], first - cut + 1, last - cut + 1


def _cell(character: str) -> str:
    """What a character looks like: tabs as blanks, control characters as a dot."""
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
