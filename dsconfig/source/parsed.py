"""What one pass over a text yields: values, offsets, and what was wrong."""

from typing import Any, NamedTuple

Offsets = tuple[int, int, int, int]
"""Key start and end (-1 where there is no key), value start and end."""


class SyntaxProblem(NamedTuple):
    """A place that hjson refuses, as offsets."""

    start: int
    end: int
    message: str
    pointer: str = ""
    crash: bool = False
    """True where hjson leaves with an exception that is not its own."""


class Reading:
    """What a text holds. ``places`` is keyed by JSON Pointer.

    ``duplicates``: pointer, and offsets of each repeated key. ``bare_texts``: pointer and
    offsets of each value that is text without quotes.
    """

    __slots__ = (
        "bare_texts",
        "duplicates",
        "is_blank",
        "places",
        "problems",
        "too_deep",
        "value",
    )

    def __init__(self) -> None:
        self.value: Any = None
        self.places: dict[str, Offsets] = {}
        self.problems: list[SyntaxProblem] = []
        self.duplicates: list[tuple[str, int, int]] = []
        self.bare_texts: list[tuple[str, int, int]] = []
        self.is_blank = False
        self.too_deep = False

    def forget_repeated(self) -> None:
        """Drop the places of what stood below the first of two equal keys."""
        repeated = {pointer: self.places[pointer][2] for pointer, _, _ in self.duplicates}

        def is_stale(pointer: str) -> bool:
            start = self.places[pointer][2]
            above = pointer
            while above:
                above = above.rpartition("/")[0]
                if above in repeated and start < repeated[above]:
                    return True
            return False

        for pointer in [pointer for pointer in self.places if is_stale(pointer)]:
            del self.places[pointer]
        self.bare_texts = [each for each in self.bare_texts if each[0] in self.places]
