"""Positions of entries, computed when somebody asks."""

from collections.abc import Iterator, Mapping
from functools import cached_property

from dsconfig.source.document import Span
from dsconfig.source.lines import LineIndex
from dsconfig.source.parsed import Offsets


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
    """The lines of a document's text, found once however many fixes ask for them.

    Places may count in a text with other line ends, which has lines of its own.
    """
    if isinstance(places, Spans) and places.lines.text == text:
        return places.lines
    return LineIndex(text)
