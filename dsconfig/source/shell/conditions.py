"""Conditions of a shell: the words of ``[ ]`` and ``[[ ]]``, whose values may not be known."""

import re
from collections.abc import Callable, Container, Mapping
from fnmatch import fnmatchcase

from dsconfig.source.shell.expansion import Value

DEEPEST = 20
"""Levels of parentheses that are read."""
_COMPARED: Mapping[str, Callable[[int, int], bool]] = {
    "-eq": lambda a, b: a == b,
    "-ne": lambda a, b: a != b,
    "-lt": lambda a, b: a < b,
    "-le": lambda a, b: a <= b,
    "-gt": lambda a, b: a > b,
    "-ge": lambda a, b: a >= b,
}


def negated(status: bool | None) -> bool | None:
    return None if status is None else not status


class Condition:
    """The words between ``[`` and ``]``: comparisons, joined by and, or, not."""

    def __init__(self, words: list[Value], variables: Container[str]) -> None:
        self.words = words
        self.variables = variables
        self.at = 0
        self.depth = 0

    def status(self) -> bool | None:
        """Return whether the condition holds; None if that is not known."""
        return self._or() if self.words else False

    def _peek(self, ahead: int = 0) -> str:
        place = self.at + ahead
        return self.words[place].text if place < len(self.words) else ""

    def _or(self) -> bool | None:
        found = [self._and()]
        while self._peek() in ("||", "-o"):
            self.at += 1
            found.append(self._and())
        return True if True in found else None if None in found else False

    def _and(self) -> bool | None:
        found = [self._not()]
        while self._peek() in ("&&", "-a"):
            self.at += 1
            found.append(self._not())
        return False if False in found else None if None in found else True

    def _not(self) -> bool | None:
        signs = 0
        while self._peek() == "!" and len(self.words) > self.at + 1:
            signs, self.at = signs + 1, self.at + 1
        status = self._inside() if self._peek() == "(" else self._primary()
        return negated(status) if signs % 2 else status

    def _inside(self) -> bool | None:
        """Return the status of a condition in parentheses; None if they are nested too deeply."""
        self.at += 1
        self.depth += 1
        inner = self._or() if self.depth < DEEPEST else None
        self.depth -= 1
        self.at += self._peek() == ")"
        return inner

    def _primary(self) -> bool | None:
        first = self.words[self.at] if self.at < len(self.words) else Value("")
        if (
            re.fullmatch(r"-[a-zA-Z]", first.text)
            and self._peek(1) not in _TWO
            and len(self.words) > self.at + 1
        ):
            value = self.words[self.at + 1]
            self.at += 2
            if not value.is_known:
                return None
            if first.text in ("-z", "-n"):
                return bool(value.text) is (first.text == "-n")
            if first.text == "-v":
                return value.text in self.variables
            return None
        if self._peek(1) in _TWO:
            sign, second = (
                self._peek(1),
                self.words[self.at + 2] if self.at + 2 < len(self.words) else Value(""),
            )
            self.at += 3
            return _compared(first, sign, second)
        self.at += 1
        return bool(first.text) if first.is_known else None


_TWO = frozenset(("=", "==", "!=", "=~", "<", ">", *_COMPARED))


def _compared(first: Value, sign: str, second: Value) -> bool | None:
    if not (first.is_known and second.is_known):
        return None
    if sign in _COMPARED:
        try:
            return _COMPARED[sign](int(first.text or 0), int(second.text or 0))
        except ValueError:
            return None
    if sign in ("=", "==", "!="):
        return fnmatchcase(first.text, second.text) is (sign != "!=")
    if sign == "=~":
        return None
    return first.text < second.text if sign == "<" else first.text > second.text
