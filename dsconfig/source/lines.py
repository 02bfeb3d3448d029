"""Offsets in a text as lines and columns, and back."""

import re
from bisect import bisect_right

from dsconfig.report import Position, Range

LINE_END = re.compile(r"\r\n|\r|\n")


class LineIndex:
    """The line starts of one text. Lines end at LF, CRLF or CR; columns count code points."""

    __slots__ = ("starts", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.starts = [0, *(match.end() for match in LINE_END.finditer(text))]

    def position(self, offset: int) -> Position:
        """The 1-based place of an offset (clamped to the text)."""
        offset = min(max(offset, 0), len(self.text))
        line = bisect_right(self.starts, offset)
        return Position(line, offset - self.starts[line - 1] + 1)

    def range(self, start: int, end: int) -> Range:
        return Range(self.position(start), self.position(max(start, end)))

    def offset(self, position: Position) -> int:
        """The offset of a place (clamped to its line, line end excluded)."""
        line = min(max(position.line, 1), len(self.starts))
        start = self.starts[line - 1]
        return min(start + max(position.column - 1, 0), self._end_of_line(line))

    def line(self, number: int) -> str:
        """The text of a 1-based line, without its line end; empty beyond the text."""
        if not 1 <= number <= len(self.starts):
            return ""
        return self.text[self.starts[number - 1] : self._end_of_line(number)]

    def _end_of_line(self, number: int) -> int:
        if number == len(self.starts):
            return len(self.text)
        end = self.starts[number] - 1
        if end > self.starts[number - 1] and self.text[end - 1 : end + 1] == "\r\n":
            end -= 1
        return end
