"""HJSON parser that returns values and positions and recovers from syntax errors.

Values equal those of the ``hjson`` package. If it rejects a text, at least one
:class:`SyntaxProblem` is recorded and parsing resumes at the next plausible position.
Iterative (nesting uses no stack) and linear in the length of the text.
"""

import re
from typing import Any

from dsconfig.source.cursor import Cursor, Frame, Parsed
from dsconfig.source.pointer import MAX_DEPTH, escape
from dsconfig.source.tokens import (
    PUNCTUATION,
    WORDS,
    TokenError,
    bare,
    bare_key,
    quoted,
    skip,
    triple_quoted,
)


def read_hjson(
    text: str, *, token: re.Pattern[str] | None = None, skip_mark: bool = True
) -> Parsed:
    """Parse a text. A match of ``token`` at the position of a value is one string.

    ``skip_mark`` is False if a byte order mark has already been removed.
    """
    parser = Parser(text, token)
    parser.read(skip_mark=skip_mark)
    if parser.out.duplicates:
        parser.out.drop_overwritten()
    return parser.out


PLAIN_MEMBER = re.compile(
    r"""[ \t\n\r]*"([^"\\\x00-\x1f]*)"[ \t\n\r]*:[ \t\n\r]*"""
    r"""(?:"([^"\\\x00-\x1f]*)"|(true|false|null|-?(?:0|[1-9][0-9]{0,17}))(?=[ \t]*[,\r\n}]))"""
    r"""[ \t\n\r]*(?:,|(?=\}))"""
)
"""An entry in plain JSON; fast path for most entries."""
PLAIN_ITEM = re.compile(
    r"""[ \t\n\r]*"""
    r"""(?:"([^"\\\x00-\x1f]*)"|(true|false|null|-?(?:0|[1-9][0-9]{0,17}))(?=[ \t]*[,\r\n\]]))"""
    r"""[ \t\n\r]*(?:,|(?=\]))"""
)
"""A list item in plain JSON."""
MAX_PLACED = 1000
"""Items of a list with individual positions; later items use that of the list."""


class Parser(Cursor):
    """Parser; ``out`` is the result."""

    # --- document -----------------------------------------------------------------------

    def read(self, *, skip_mark: bool) -> None:
        if skip_mark and self.text.startswith(("\ufeff", "\xef\xbb\xbf")):
            self.at = 1 if self.text[0] == "\ufeff" else 3
        begin = self.at
        self.skip()
        if self.at == len(self.text) and begin == 0 and not self.out.problems:
            self.out.value = {}
            self.out.is_blank = True
            self.out.places[""] = (-1, -1, 0, 0)
        elif self.peek() in ("{", "["):
            self.open("", -1, -1)
            self.parse_containers()
        else:
            self.read_braceless()

    def read_braceless(self) -> None:
        """Parse a root object without braces, or a single value."""
        start = self.at
        self.push(Frame({}, "", -1, -1, start, braceless=True))
        if start == len(self.text):
            self.problem(start, start, "expected a config, found only a byte order mark")
        self.parse_containers()
        problems = self.out.problems
        if not problems or problems[0].crash or start == len(self.text):
            return
        alone = Parser(self.text)
        alone.at = start
        if alone.read_single():
            self.out = alone.out

    def read_single(self) -> bool:
        """Return whether the rest of the text is a single value."""
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

    def parse_containers(self) -> None:
        """Parse items until all containers are closed or the text ends."""
        while self.stack:
            if len(self.stack) > MAX_DEPTH:
                self.out.too_deep = True
                return
            frame = self.stack[-1]
            is_object = type(frame.items) is dict
            if frame.pointer is not None:
                if is_object:
                    self.plain_members(frame.items, frame.pointer)
                else:
                    self.plain_items(frame.items, frame.pointer)
            self.skip()
            if self.at >= len(self.text):
                if not frame.braceless:
                    self.unclosed()
                self.stack.clear()
                return
            if is_object:
                self.member(frame)
            else:
                self.element(frame)
        self.skip()
        if self.at < len(self.text):
            found = self.text[self.at]
            self.problem(self.at, self.at + 1, f"unexpected {found!r} after the end of the config")

    def plain_members(self, items: dict[str, Any], pointer: str) -> None:
        """Parse consecutive entries in plain JSON."""
        match, places = PLAIN_MEMBER.match, self.out.places
        member = match(self.text, self.at)
        while member is not None:
            key, text, word = member.groups()
            here = f"{pointer}/{key}"
            if "/" in key or "~" in key:
                here = f"{pointer}/{escape(key)}"
            key_start, key_end = member.span(1)
            if key in items:
                self.out.duplicates.append((here, key_start - 1, key_end + 1))
            if word is None:
                items[key] = text
                start, end = member.span(2)
                places[here] = (key_start - 1, key_end + 1, start - 1, end + 1)
            else:
                items[key] = WORDS[word] if word in WORDS else int(word)
                places[here] = (key_start - 1, key_end + 1, *member.span(3))
            self.at = member.end()
            member = match(self.text, self.at)

    def plain_items(self, items: list[Any], pointer: str) -> None:
        """Parse consecutive list items in plain JSON."""
        match, places = PLAIN_ITEM.match, self.out.places
        item = match(self.text, self.at)
        while item is not None:
            text, word = item.groups()
            if word is None:
                items.append(text)
                start, end = item.span(1)
                start, end = start - 1, end + 1
            else:
                items.append(WORDS[word] if word in WORDS else int(word))
                start, end = item.span(2)
            if len(items) <= MAX_PLACED:
                places[f"{pointer}/{len(items) - 1}"] = (-1, -1, start, end)
            self.at = item.end()
            item = match(self.text, self.at)

    def element(self, frame: Frame) -> None:
        """Parse a list item or the end of the list."""
        mark = self.text[self.at]
        if mark == "]":
            self.at += 1
            self.close()
            return
        if mark == "}":
            self.mismatch(frame, "]")
            return
        if mark in ",:":
            self.problem(self.at, self.at + 1, f"expected a value, found {mark!r}")
            self.at += 1
            return
        index = len(frame.items)
        is_placed = frame.pointer is not None and (index < MAX_PLACED or mark in "{[")
        self.value(frame, index, f"{frame.pointer}/{index}" if is_placed else None, -1, -1)

    def member(self, frame: Frame) -> None:
        """Parse an entry or the end of the object."""
        mark = self.text[self.at]
        if mark == "}" and not frame.braceless:
            self.at += 1
            self.close()
            return
        if mark in "]}":
            self.mismatch(frame, "}")
            return
        if mark == ",":
            self.problem(self.at, self.at + 1, "expected a key, found ','")
            self.at += 1
            return
        if mark in "{[":
            self.problem(self.at, self.at + 1, f"expected a key, found {mark!r}")
            self.value(frame, None, None, -1, -1)
            return
        start = self.at
        key = self.key()
        end = self.at
        if key is None:
            return
        here = None
        if frame.pointer is not None:
            escaped = escape(key) if "/" in key or "~" in key else key
            here = f"{frame.pointer}/{escaped}"
        if not self.colon(key, here):
            return
        if key in frame.items and here is not None:
            self.out.duplicates.append((here, start, end))
        self.value(frame, key, here, start, end)

    def value(self, frame: Frame, key: Any, here: str | None, start: int, end: int) -> None:
        """Parse the value of ``key`` in ``frame``; it is discarded if ``key`` is None."""
        self.skip()
        mark = self.peek()
        while mark == ":":
            self.problem(self.at, self.at + 1, "expected a value, found ':'", here)
            self.at += 1
            self.skip()
            mark = self.peek()
        if mark == "":
            self.cut_short(start, end)
            return
        if mark in ",}]":
            self.problem(self.at, self.at + 1, f"expected a value, found {mark!r}", here)
            self.after_value()
            return
        is_placeholder = self.token is not None and self.token.match(self.text, self.at)
        if mark in "{[" and not is_placeholder:
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

    def store(self, frame: Frame, key: Any, value: Any) -> None:
        if key is None:
            return
        if isinstance(key, str):
            frame.items[key] = value
        else:
            frame.items.append(value)

    def scalar(self, here: str | None) -> tuple[Any, int]:
        mark = self.text[self.at]
        if self.token is not None:
            placeholder = self.token.match(self.text, self.at)
            if placeholder is not None:
                self.out.bare_texts.append((here or "", self.at, placeholder.end()))
                return placeholder[0], placeholder.end()
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
        """Parse a key; return None if there is none to continue with."""
        mark = self.text[self.at]
        if mark == ":":
            message = "expected a key, found ':'"
            self.problem(self.at, self.at + 1, message)
            self.value(self.stack[-1], None, None, -1, -1)
            return None
        read = quoted if mark in "\"'" else bare_key
        try:
            key, self.at = read(self.text, self.at)
        except TokenError as error:
            self.at = error.resume
            if error.crash or self.at < len(self.text) or self.is_braceless():
                self.problem(error.start, error.end, error.message, crash=error.crash)
            ended = self.peek() in ("", "\r", "\n")
            return None if ended or error.value is None else str(error.value)
        return key

    def colon(self, key: str, here: str | None) -> bool:
        """Skip the colon after a key; return whether a value follows."""
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
            message = f"expected ':' after key {key!r}, found '='"
            self.problem(self.at, self.at + 1, message, here)
            self.at += 1
            return True
        self.problem(behind, behind, f"expected ':' after key {key!r}", here)
        new_line = not set("\r\n").isdisjoint(self.text[behind : self.at])
        if mark in ",}]" or new_line:
            self.after_value()
            return False
        return True
