"""One pass over a text: what it yields, where it stands, and how mistakes are told."""

import re
from typing import Any, NamedTuple

from dsconfig.source import pointer as pointers
from dsconfig.source.positions import Offsets
from dsconfig.source.tokens import TokenError, skip


class SyntaxProblem(NamedTuple):
    """A place that hjson refuses, as offsets."""

    start: int
    end: int
    message: str
    pointer: str = ""
    crash: bool = False
    """True where hjson leaves with an exception that is not its own."""


class Parsed:
    """What one pass over a text yields. ``places`` is keyed by JSON Pointer.

    ``duplicates``: pointer, and offsets of each repeated key. ``bare_texts``: pointer and
    offsets of each value that is text without quotes.
    """

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


MAX_PROBLEMS = 20
"""Syntax errors after which a text is given up."""


class Frame(NamedTuple):
    """A container that is being filled. ``pointer`` is None inside a part that is thrown away."""

    items: Any
    pointer: str | None
    key_start: int
    key_end: int
    start: int
    braceless: bool = False


class Cursor:
    """A place in a text, the containers open there, and what was found so far."""

    def __init__(self, text: str, token: re.Pattern[str] | None = None) -> None:
        self.text = text
        self.token = token
        self.at = 0
        self.stack: list[Frame] = []
        self.out: Parsed = Parsed()

    # --- containers ---------------------------------------------------------------------

    def open(self, pointer: str | None, key_start: int, key_end: int) -> None:
        items: Any = {} if self.text[self.at] == "{" else []
        self.push(Frame(items, pointer, key_start, key_end, self.at))
        self.at += 1

    def push(self, frame: Frame) -> None:
        if not self.stack:
            self.out.value = frame.items
        if frame.pointer is not None:
            place = (frame.key_start, frame.key_end, frame.start, len(self.text))
            self.out.places[frame.pointer] = place
        self.stack.append(frame)

    def close(self) -> None:
        """Close the innermost container behind the current character, and go on behind it."""
        frame = self.stack.pop()
        if frame.pointer is not None:
            place = (frame.key_start, frame.key_end, frame.start, self.at)
            self.out.places[frame.pointer] = place
        if self.stack:
            self.after_value()

    def after_value(self) -> None:
        self.skip()
        if self.peek() == ",":
            self.at += 1

    # --- mistakes -----------------------------------------------------------------------

    def mismatch(self, frame: Frame, wanted: str) -> None:
        """A closing mark that does not belong to ``frame``."""
        mark = self.text[self.at]
        kind = list if mark == "]" else dict
        enclosing = any(
            isinstance(outer.items, kind) and not outer.braceless for outer in self.stack[:-1]
        )
        if enclosing or len(self.stack) > 1:
            self.problem(self.at, self.at + 1, f"{mark!r} stands where {wanted!r} is expected")
            # Either this container's own mark is missing, or it is this one, mistyped.
            self.at += 0 if enclosing else 1
            self.close()
        else:
            self.problem(self.at, self.at + 1, f"nothing is open that {mark!r} could close")
            self.at += 1

    def cut_short(self, start: int, end: int) -> None:
        """The text ends inside an entry; told here only where no bracket is left open."""
        if self.is_braceless():
            self.problem(start, end, "the text ends before this key has a value")

    def is_braceless(self) -> bool:
        return all(frame.braceless for frame in self.stack)

    def unclosed(self) -> None:
        """The text ends inside a container."""
        frame = next(item for item in reversed(self.stack) if not item.braceless)
        mark = "}" if isinstance(frame.items, dict) else "]"
        line = self.text.count("\n", 0, frame.start) + 1
        name = pointers.dotted(frame.pointer or "")
        what = "the config" if name == "(root)" else f'"{name}"'
        for pointer, start, end in self.out.bare_texts:
            value = self.text[start:end]
            if mark in value and start > frame.start:
                shown = value if len(value) <= 30 else f"{value[:27]}..."
                message = f"{shown!r} has no quotes, so it is a text up to the end of its line"
                message = f"{message}, and {what} is never closed"
                self.problem(start, start + len(value.rstrip()), message, pointer)
                return
        message = f"the text ends inside {what}, opened on line {line}: {mark!r} is missing"
        end = len(self.text)
        self.problem(end, end, message, "")

    def problem(
        self, start: int, end: int, message: str, pointer: str | None = "", crash: bool = False
    ) -> None:
        """Record a mistake; one to a line, so that one mistake is not told many times."""
        problems = self.out.problems
        if problems and self.text.find("\n", problems[-1].start, max(start, end)) < 0:
            return
        problems.append(SyntaxProblem(start, end, message, pointer or "", crash))
        if len(problems) >= MAX_PROBLEMS:
            self.at = len(self.text)
            self.stack.clear()

    def skip(self) -> None:
        try:
            self.at = skip(self.text, self.at)
        except TokenError as error:
            self.problem(error.start, error.end, error.message, crash=error.crash)
            self.at = error.resume

    def peek(self) -> str:
        return self.text[self.at : self.at + 1]
