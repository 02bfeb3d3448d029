"""Offsets as lines and columns, and positions of entries."""

import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from functools import cached_property

from dsconfig.report import Position, Range
from dsconfig.source.document import Span

Offsets = tuple[int, int, int, int]
"""Start and end of the key (-1 without a key), start and end of the value."""
LINE_END = re.compile(r"\r\n|\r|\n")


class LineIndex:
    """The line starts of one text. Lines end at LF, CRLF or CR; columns count code points."""

    __slots__ = ("starts", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.starts = [0, *(match.end() for match in LINE_END.finditer(text))]

    def position(self, offset: int) -> Position:
        """Return the 1-based position of an offset (clamped to the text)."""
        offset = min(max(offset, 0), len(self.text))
        line = bisect_right(self.starts, offset)
        return Position(line, offset - self.starts[line - 1] + 1)

    def range(self, start: int, end: int) -> Range:
        return Range(self.position(start), self.position(max(start, end)))

    def offset(self, position: Position) -> int:
        """Return the offset of a position (clamped to its line, excluding the line end)."""
        line = min(max(position.line, 1), len(self.starts))
        start = self.starts[line - 1]
        return min(start + max(position.column - 1, 0), self._end_of_line(line))

    def line(self, number: int) -> str:
        """Return a 1-based line without its line end; empty if out of range."""
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


class Spans(Mapping[str, Span]):
    """A mapping from JSON Pointer to :class:`Span` over a reader's offsets."""

    def __init__(self, text: str, places: Mapping[str, Offsets]) -> None:
        self._text = text
        self._places = places

    @cached_property
    def lines(self) -> LineIndex:
        return LineIndex(self._text)

    def __getitem__(self, pointer: str) -> Span:
        key_start, key_end, start, end = self._places[pointer]
        key = self.lines.range(key_start, key_end) if key_start >= 0 else None
        return Span(key=key, value=self.lines.range(start, end))

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


def line_index(text: str, places: Mapping[str, Span]) -> LineIndex:
    """Return the line index of a document's text, reusing that of its positions.

    Positions may refer to a text with other line ends, which needs a separate index.
    """
    if isinstance(places, Spans) and places.lines.text == text:
        return places.lines
    return LineIndex(text)
