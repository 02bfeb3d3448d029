"""Parser state: current offset, open containers, results and syntax errors."""

import re
from typing import Any, NamedTuple

from dsconfig.source import pointer as pointers
from dsconfig.source.positions import Offsets
from dsconfig.source.tokens import TokenError, skip


class SyntaxProblem(NamedTuple):
    """A syntax error, as offsets into the text."""

    start: int
    end: int
    message: str
    pointer: str = ""
    crash: bool = False
    """Whether hjson raises an exception other than its own."""


class Parsed:
    """Result of parsing. ``places`` maps JSON Pointers to offsets.

    ``duplicates``: pointer and offsets of each repeated key. ``bare_texts``: pointer and
    offsets of each unquoted string.
    """

    def __init__(self) -> None:
        self.value: Any = None
        self.places: dict[str, Offsets] = {}
        self.problems: list[SyntaxProblem] = []
        self.duplicates: list[tuple[str, int, int]] = []
        self.bare_texts: list[tuple[str, int, int]] = []
        self.is_blank = False
        self.too_deep = False

    def drop_overwritten(self) -> None:
        """Drop the positions of entries below a key that a later duplicate overwrites."""
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
        self.bare_texts = [text for text in self.bare_texts if text[0] in self.places]


MAX_PROBLEMS = 20
"""Number of syntax errors after which parsing stops."""


class Frame(NamedTuple):
    """An open container. ``pointer`` is None inside a part that is discarded."""

    items: Any
    pointer: str | None
    key_start: int
    key_end: int
    start: int
    braceless: bool = False


class Cursor:
    """Offset in a text, the open containers, and the result so far."""

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
        """Close the innermost container and move past it."""
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

    # --- errors -------------------------------------------------------------------------

    def mismatch(self, frame: Frame, wanted: str) -> None:
        """Report a closing bracket that does not match ``frame``."""
        mark = self.text[self.at]
        kind = list if mark == "]" else dict
        enclosing = any(
            isinstance(outer.items, kind) and not outer.braceless for outer in self.stack[:-1]
        )
        if enclosing or len(self.stack) > 1:
            self.problem(self.at, self.at + 1, f"expected {wanted!r}, found {mark!r}")
            # Either this container's own bracket is missing, or this one is mistyped.
            self.at += 0 if enclosing else 1
            self.close()
        else:
            self.problem(self.at, self.at + 1, f"unmatched {mark!r}")
            self.at += 1

    def cut_short(self, start: int, end: int) -> None:
        """Report a text that ends inside an entry, unless a bracket is open (see ``unclosed``)."""
        if self.is_braceless():
            self.problem(start, end, "expected a value before the end of the file")

    def is_braceless(self) -> bool:
        return all(frame.braceless for frame in self.stack)

    def unclosed(self) -> None:
        """Report a text that ends inside a container."""
        frame = next(item for item in reversed(self.stack) if not item.braceless)
        mark = "}" if isinstance(frame.items, dict) else "]"
        line = self.text.count("\n", 0, frame.start) + 1
        name = pointers.dotted(frame.pointer or "")
        what = "the config" if name == "(root)" else f'"{name}"'
        for pointer, start, end in self.out.bare_texts:
            value = self.text[start:end]
            if mark in value and start > frame.start:
                shown = value if len(value) <= 30 else f"{value[:27]}..."
                message = (
                    f"unquoted string {shown!r} extends to the end of the line and hides {mark!r}, "
                    f"so {what} is never closed"
                )
                self.problem(start, start + len(value.rstrip()), message, pointer)
                return
        message = f"expected {mark!r} to close {what}, opened on line {line}"
        end = len(self.text)
        self.problem(end, end, message, "")

    def problem(
        self, start: int, end: int, message: str, pointer: str | None = "", crash: bool = False
    ) -> None:
        """Record an error; only the first one on each line."""
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
