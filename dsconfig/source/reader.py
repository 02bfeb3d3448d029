"""HJSON text to values and positions, with recovery after a syntax error.

A superset of JSON. Where the ``hjson`` package reads a text, the values are the same; where
it refuses, at least one :class:`SyntaxProblem` is recorded and reading goes on at the next
sensible place. Iterative, so that nesting costs no stack, and linear in the text.
"""

from dataclasses import dataclass, field
from typing import Any

from dsconfig.source import pointer as pointers
from dsconfig.source.tokens import (
    BARE_KEY,
    LINE_END,
    PUNCTUATION,
    SPACE,
    TokenError,
    bare,
    quoted,
    skip,
    triple_quoted,
)

DEEPEST = 400
"""Levels of nesting that are read. ``hjson`` and ``json`` give up at Python's own limit."""
MOST_PROBLEMS = 20

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


@dataclass(slots=True)
class _Frame:
    """A container that is being filled. ``pointer`` is None inside a part that is thrown away."""

    items: Any
    pointer: str | None
    key_start: int
    key_end: int
    start: int
    braceless: bool = False


def read_hjson(text: str) -> Reading:
    """Read a whole text."""
    return _Reader(text).read()


class _Reader:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.stack: list[_Frame] = []
        self.out = Reading()
        self.last_problem_line = -1

    # --- the whole text -----------------------------------------------------------------

    def read(self) -> Reading:
        if self.text.startswith("\ufeff"):
            self.at = 1
        elif self.text.startswith("\xef\xbb\xbf"):
            self.at = 3
        begin = self.at
        self.skip()
        if self.at == len(self.text) and begin == 0 and not self.out.problems:
            self.out.value = {}
            self.out.is_blank = True
            self.out.places[""] = (-1, -1, 0, 0)
            return self.out
        if self.peek() in ("{", "["):
            self.open("", -1, -1)
            self.fill()
        else:
            self.read_braceless()
        return self.out

    def read_braceless(self) -> None:
        """A root object without braces; failing that, a single value."""
        start = self.at
        self.push(_Frame({}, "", -1, -1, start, braceless=True))
        if start == len(self.text):
            self.problem(start, start, "the text holds nothing but a byte order mark")
        self.fill()
        problems = self.out.problems
        if not problems or problems[0].crash or start == len(self.text):
            return
        alone = _Reader(self.text)
        alone.at = start
        if alone.read_single():
            self.out = alone.out

    def read_single(self) -> bool:
        """True when the rest of the text is one value and nothing else."""
        start = self.at
        if self.peek() in PUNCTUATION:
            return False
        try:
            value, self.at = self.scalar("")
            end = self.at
            self.at = skip(self.text, self.at)
        except TokenError:
            return False
        self.out.value = value
        self.out.places[""] = (-1, -1, start, end)
        return self.at == len(self.text)

    # --- containers ---------------------------------------------------------------------

    def open(self, pointer: str | None, key_start: int, key_end: int) -> None:
        items: Any = {} if self.text[self.at] == "{" else []
        self.push(_Frame(items, pointer, key_start, key_end, self.at))
        self.at += 1

    def push(self, frame: _Frame) -> None:
        if not self.stack:
            self.out.value = frame.items
        if frame.pointer is not None:
            self.out.places[frame.pointer] = (
                frame.key_start,
                frame.key_end,
                frame.start,
                len(self.text),
            )
        self.stack.append(frame)

    def close(self) -> None:
        """Close the innermost container behind the current character."""
        frame = self.stack.pop()
        if frame.pointer is not None:
            place = (frame.key_start, frame.key_end, frame.start, self.at)
            self.out.places[frame.pointer] = place

    def fill(self) -> None:
        """Read items until every open container is closed or the text ends."""
        while self.stack:
            if len(self.stack) > DEEPEST:
                self.out.too_deep = True
                return
            self.skip()
            frame = self.stack[-1]
            if self.at >= len(self.text):
                if not frame.braceless:
                    self.unclosed()
                self.stack.clear()
                return
            if isinstance(frame.items, dict):
                self.member(frame)
            else:
                self.element(frame)
        self.skip()
        if self.at < len(self.text):
            found = self.text[self.at]
            self.problem(self.at, self.at + 1, f"{found!r} stands behind the end of the config")

    def after_value(self) -> None:
        self.skip()
        if self.peek() == ",":
            self.at += 1

    def element(self, frame: _Frame) -> None:
        """One item of an array, or its end."""
        mark = self.text[self.at]
        if mark == "]":
            self.at += 1
            self.close()
            if self.stack:
                self.after_value()
            return
        if mark == "}":
            self.mismatch(frame, "]")
            return
        if mark in ",:":
            self.problem(self.at, self.at + 1, f"a value is missing before this {mark!r}")
            self.at += 1
            return
        index = len(frame.items)
        here = None if frame.pointer is None else f"{frame.pointer}/{index}"
        self.value(frame, index, here, -1, -1)

    def member(self, frame: _Frame) -> None:
        """One entry of an object, or its end."""
        mark = self.text[self.at]
        if mark == "}" and not frame.braceless:
            self.at += 1
            self.close()
            if self.stack:
                self.after_value()
            return
        if mark in "]}":
            self.mismatch(frame, "}")
            return
        if mark == ",":
            self.problem(self.at, self.at + 1, "a key is missing before this comma")
            self.at += 1
            return
        if mark in "{[":
            self.problem(self.at, self.at + 1, f"a key is missing before this {mark!r}")
            self.value(frame, None, None, -1, -1)
            return
        start = self.at
        key = self.key()
        end = self.at
        if key is None:
            return
        here = None
        if frame.pointer is not None:
            escaped = pointers.escape(key) if "/" in key or "~" in key else key
            here = f"{frame.pointer}/{escaped}"
        if not self.colon(key, here):
            return
        if key in frame.items and here is not None:
            self.out.duplicates.append((here, start, end))
        self.value(frame, key, here, start, end)

    def value(self, frame: _Frame, key: Any, here: str | None, start: int, end: int) -> None:
        """The value of ``key`` in ``frame``; ``key`` None throws it away."""
        self.skip()
        mark = self.peek()
        while mark == ":":
            self.problem(self.at, self.at + 1, "a value is missing before this ':'", here)
            self.at += 1
            self.skip()
            mark = self.peek()
        if mark == "":
            self.cut_short(start, end)
            return
        if mark in ",}]":
            self.problem(self.at, self.at + 1, f"a value is missing before this {mark!r}", here)
            self.after_value()
            return
        if mark in "{[":
            self.open(here, start, end)
            self.store(frame, key, self.stack[-1].items)
            return
        begin = self.at
        try:
            value, self.at = self.scalar(here)
        except TokenError as error:
            self.problem(error.start, error.end, error.message, here, error.crash)
            value, self.at = error.value, error.resume
        self.store(frame, key, value)
        if here is not None:
            raw = self.text[begin : self.at]
            self.out.places[here] = (start, end, begin, begin + len(raw.rstrip()))
        self.after_value()

    def store(self, frame: _Frame, key: Any, value: Any) -> None:
        if key is None:
            return
        if isinstance(key, str):
            frame.items[key] = value
        else:
            frame.items.append(value)

    def scalar(self, here: str | None) -> tuple[Any, int]:
        mark = self.text[self.at]
        if mark == "'" and self.text.startswith("'''", self.at):
            return triple_quoted(self.text, self.at)
        if mark in "\"'":
            return quoted(self.text, self.at)
        value, end, is_text = bare(self.text, self.at)
        if is_text and here is not None:
            self.out.bare_texts.append((here, self.at, end))
        return value, end

    # --- keys ---------------------------------------------------------------------------

    def key(self) -> str | None:
        """The key at the current place; None where there is none to go on with."""
        mark = self.text[self.at]
        if mark in "\"'":
            try:
                key, self.at = quoted(self.text, self.at)
            except TokenError as error:
                self.problem(error.start, error.end, error.message, crash=error.crash)
                self.at = error.resume
                ended = self.peek() in ("", "\r", "\n")
                return None if ended else str(error.value)
            return key
        if mark == ":":
            message = 'a key is missing before this colon; an empty key is written ""'
            self.problem(self.at, self.at + 1, message)
            self.value(self.stack[-1], None, None, -1, -1)
            return None
        return self.bare_key()

    def bare_key(self) -> str | None:
        start = self.at
        end = BARE_KEY.match(self.text, start).end()  # type: ignore[union-attr]
        self.at = SPACE.match(self.text, end).end()  # type: ignore[union-attr]
        follower = self.peek()
        if follower == ":":
            key = self.text[start:end]
            return key.rstrip() if self.at > end else key
        name = self.text[start:end]
        if follower == "":
            self.cut_short(start, end)
            return None
        line_end = LINE_END.search(self.text, start).start()  # type: ignore[union-attr]
        colon = self.text.find(":", end, line_end)
        if follower in PUNCTUATION or colon < 0:
            self.problem(start, end, f"':' and a value are missing after the key {name!r}")
            self.at = max(end, min(self.at, line_end))
            if follower not in PUNCTUATION:
                self.at = max(end, line_end)
            elif follower == ",":
                self.at += 1
            return None
        key = self.text[start:colon].strip()
        message = f"the key {key!r} holds a space, so it needs quotes"
        self.problem(start, start + len(key), message)
        self.at = colon
        return key

    def colon(self, key: str, here: str | None) -> bool:
        """Step over the colon behind a key. False where no value follows."""
        behind = self.at
        self.skip()
        mark = self.peek()
        if mark == ":":
            self.at += 1
            return True
        if mark == "":
            self.cut_short(behind, behind)
            return False
        if mark == "=":
            message = f"'=' stands where ':' is expected after the key {key!r}"
            self.problem(self.at, self.at + 1, message, here)
            self.at += 1
            return True
        self.problem(behind, behind, f"':' is missing after the key {key!r}", here)
        new_line = LINE_END.search(self.text, behind).start() < self.at  # type: ignore[union-attr]
        if mark in ",}]" or new_line:
            self.after_value()
            return False
        return True

    # --- mistakes -----------------------------------------------------------------------

    def mismatch(self, frame: _Frame, wanted: str) -> None:
        """A closing mark that does not belong to ``frame``."""
        mark = self.text[self.at]
        kind = list if mark == "]" else dict
        enclosing = any(
            isinstance(outer.items, kind) and not outer.braceless for outer in self.stack[:-1]
        )
        if enclosing:
            self.problem(self.at, self.at + 1, f"{mark!r} stands where {wanted!r} is expected")
            self.close()
            self.after_value()
        else:
            self.problem(self.at, self.at + 1, f"nothing is open that {mark!r} could close")
            self.at += 1

    def cut_short(self, start: int, end: int) -> None:
        """The text ends inside an entry; told here only where no bracket is left open."""
        if all(frame.braceless for frame in self.stack):
            self.problem(start, end, "the text ends before this key has a value")

    def unclosed(self) -> None:
        """The text ends inside a container."""
        frame = next(item for item in reversed(self.stack) if not item.braceless)
        line = self.text.count("\n", 0, frame.start) + 1
        mark = "}" if isinstance(frame.items, dict) else "]"
        name = pointers.dotted(frame.pointer or "")
        what = "the config" if name == "(root)" else f'"{name}"'
        message = f"the text ends inside {what}, opened on line {line}: {mark!r} is missing"
        end = len(self.text)
        self.problem(end, end, message, "")

    def problem(
        self, start: int, end: int, message: str, pointer: str | None = "", crash: bool = False
    ) -> None:
        """Record a mistake; one to a line, so that one mistake is not told many times."""
        problems = self.out.problems
        if problems and "\n" not in self.text[problems[-1].start : max(start, end)]:
            return
        problems.append(SyntaxProblem(start, end, message, pointer or "", crash))
        if len(problems) >= MOST_PROBLEMS:
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
