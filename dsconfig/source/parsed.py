"""What one pass over a text yields: values, offsets, and what was wrong."""

from dataclasses import dataclass, field
from typing import Any

Offsets = tuple[int, int, int, int]
"""Key start and end (-1 where there is no key), value start and end."""


@dataclass(frozen=True, slots=True)
class SyntaxProblem:
    """A place that hjson refuses, as offsets."""

    start: int
    end: int
    message: str
    pointer: str = ""
    crash: bool = False
    """True where hjson leaves with an exception that is not its own."""


@dataclass(slots=True)
class Reading:
    """What a text holds. ``places`` is keyed by JSON Pointer."""

    value: Any = None
    places: dict[str, Offsets] = field(default_factory=dict[str, Offsets])
    problems: list[SyntaxProblem] = field(default_factory=list[SyntaxProblem])
    duplicates: list[tuple[str, int, int]] = field(default_factory=list[tuple[str, int, int]])
    """Pointer, and offsets of the repeated key."""
    bare_texts: list[tuple[str, int, int]] = field(default_factory=list[tuple[str, int, int]])
    """Pointer and offsets of each value that is text without quotes."""
    is_blank: bool = False
    too_deep: bool = False

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
