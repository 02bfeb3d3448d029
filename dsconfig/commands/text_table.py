"""Plain-text tables and wrapping, without the import time of a library.

The last column is wrapped to the terminal; also the first if words of the last would be cut.
"""

import re
import shutil
import sys
import textwrap
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from dsconfig.report.render.terminal import look_of
from dsconfig.report.writers import one_line, visible

if TYPE_CHECKING:
    from collections.abc import Sequence

PIPED_WIDTH = 160
GAP = "  "
WIDEST_TEXT = 100
NARROWEST = 20
"""Minimum width of the last column."""


class TextTable:
    """Rows of text with a header; columns whose name begins with ``>`` are right-aligned."""

    def __init__(self, *columns: str) -> None:
        self._right = [column.startswith(">") for column in columns]
        self._rows: list[tuple[list[str], bool]] = [([name.lstrip(">") for name in columns], False)]

    def add_row(self, *cells: str, bold: bool = False) -> None:
        self._rows.append(([one_line(cell) for cell in cells], bold))

    def __str__(self) -> str:
        widths = [
            max(len(row[index]) for row, _ in self._rows) for index in range(len(self._right))
        ]
        space = terminal_width() - sum(widths[:-1]) - len(GAP) * (len(widths) - 1)
        lacking = max(NARROWEST, self._longest_word(-1)) - space
        if lacking > 0 and len(widths) > 1 and not self._right[0]:
            narrowed = max(widths[0] - lacking, self._longest_word(0))
            space, widths[0] = space + widths[0] - narrowed, narrowed
        space = max(NARROWEST, space)
        lines: list[str] = []
        for cells, bold in self._rows:
            last = [part for line in _lines(cells[-1], space) for part in _cut(line, space)] or [""]
            first = _lines(cells[0], widths[0]) if len(cells) > 1 else []
            others = [[cell] for cell in cells[1:-1]]
            columns = [first, *others, last] if len(cells) > 1 else [last]
            for row in zip_longest(*columns, fillvalue=""):
                lines.append(emphasised(self._line(row, widths), bold))
        return "\n".join(lines)

    def _longest_word(self, column: int) -> int:
        return max(len(word) for row, _ in self._rows for word in row[column].split() or [""])

    def _line(self, cells: "Sequence[str]", widths: "Sequence[int]") -> str:
        aligned = [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(cells, widths, self._right, strict=True)
        ]
        return GAP.join(aligned).rstrip()


def terminal_width() -> int:
    return shutil.get_terminal_size((PIPED_WIDTH, 24)).columns


def uses_color() -> bool:
    """Return whether stdout is a terminal or FORCE_COLOR is set, and NO_COLOR is not."""
    return look_of(sys.stdout).color


def emphasised(text: str, enabled: bool = True) -> str:
    """Return bold text if color is enabled."""
    return f"\033[1m{text}\033[0m" if enabled and uses_color() else text


VERDICT_COLORS = {
    "Does not fit": "1;31",
    "Nothing fits": "1;31",
    "May not fit": "1;33",
    "Fits, but": "1;33",
    "Fits without": "1;33",
    "Fits": "1;32",
    "Fastest that fits": "1;32",
}
"""ANSI codes by the first words of a verdict."""


def colored_verdict(text: str) -> str:
    """Return a verdict in green, yellow or red if color is enabled, or bold if it is neither."""
    if not uses_color():
        return text
    codes = (code for start, code in VERDICT_COLORS.items() if text.startswith(start))
    return f"\033[{next(codes, '1')}m{text}\033[0m"


def paragraph(text: str, *, first: str = "", indent: str = "") -> str:
    """Return text wrapped to the terminal with a hanging indent; words are not broken."""
    width = min(WIDEST_TEXT, terminal_width())
    return "\n".join(_lines(visible(text), width, initial_indent=first, subsequent_indent=indent))


_BEFORE = re.compile(r" *(?:[->] |\S.{0,20}?  +)?")
"""Prefix of a line: an indent, a mark, or a label and a gap."""


def fitted(text: str) -> str:
    """Return the text with lines wrapped to the terminal, aligned with the start of their text."""
    width = shutil.get_terminal_size((UNBOUNDED, 24)).columns
    return "\n".join(part for line in text.split("\n") for part in _fitted(line, width))


UNBOUNDED = 10**6
"""Columns of a pipe: lines are not wrapped."""


def _fitted(line: str, width: int) -> list[str]:
    before = _BEFORE.match(line)
    first = before[0] if before else ""
    if len(line) <= width or len(first) > width // 2:
        return [line]
    indent = first if first.startswith("> ") else " " * (len(first) or 2)
    body = line[len(first) :]
    return _lines(body, width, initial_indent=first, subsequent_indent=indent)


NO_BREAK = "\u00a0"
"""A space at which lines are not broken."""


def _lines(text: str, width: int, **how: Any) -> list[str]:
    """Wrap to ``width``; numbers stay with their unit or name (61.2 GiB, stage 3)."""
    joined = re.sub(r"(?<=[A-Za-z]) (?=\d)|(?<=\d) (?=[A-Za-z%])", NO_BREAK, text)
    how |= {"break_on_hyphens": False, "break_long_words": False}
    return [line.replace(NO_BREAK, " ") for line in textwrap.wrap(joined, width, **how)]


def _cut(line: str, width: int) -> list[str]:
    """Split a word that is longer than its column."""
    return [line[start : start + width] for start in range(0, len(line), width)]
