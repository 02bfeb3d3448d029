"""Patterns of logs take time linear in a line: at most one gap of any length may be tried again."""

import re
from collections.abc import Iterator
from re import _constants as names  # pyright: ignore[reportAttributeAccessIssue,reportUnknownVariableType]
from re import _parser as parser  # pyright: ignore[reportAttributeAccessIssue,reportUnknownVariableType]
from typing import Any

import pytest

from dsconfig.facts import run_log
from dsconfig.failures import diagnosis, explanation, scanner, text, waiting
from dsconfig.failures.signature import signatures

LONG = 1000
"""Repeats from which a gap counts as unbounded."""
ANY_TEXT = (names.ANY, names.NOT_LITERAL)


def patterns() -> Iterator[str]:
    for signature in signatures():
        yield from filter(
            None,
            (
                signature.pattern,
                signature.items,
                signature.before,
                signature.frame,
                signature.frames,
                *signature.near,
            ),
        )
    for module in (run_log, diagnosis, explanation, scanner, text, waiting):
        for value in vars(module).values():
            listed: Any = value.values() if isinstance(value, dict) else value
            for each in listed if isinstance(listed, tuple) or listed is not value else (value,):
                if isinstance(each, re.Pattern):
                    yield each.pattern if isinstance(each.pattern, str) else each.pattern.decode()


def gaps(parsed: Any) -> int:
    """Return the largest number of gaps of any text on one path that a match may try again."""
    count = 0
    for operation, value in parsed:
        if operation in (names.MAX_REPEAT, names.MIN_REPEAT):
            _, most, inside = value
            count += (most > LONG and inside[0][0] in ANY_TEXT) + gaps(inside)
        elif operation is names.SUBPATTERN:
            count += gaps(value[3])
        elif operation is names.BRANCH:
            count += max(map(gaps, value[1]))
        elif operation in (names.ASSERT, names.ASSERT_NOT):
            count += gaps(value[1])
    return count  # atomic groups and possessive repeats are never tried again


@pytest.mark.parametrize("pattern", sorted({*patterns()}))
def test_pattern_has_at_most_one_gap(pattern: str) -> None:
    assert gaps(parser.parse(pattern)) <= 1


@pytest.mark.parametrize(
    ("pattern", "count"),
    [("a.*b.*c", 2), ("a(?>.*?b)c.*", 1), ("a|b.*|.*c", 1), ("(a.*)?[^x]*y", 2), (".*+a.*", 1)],
)
def test_gaps_are_counted(pattern: str, count: int) -> None:
    assert gaps(parser.parse(pattern)) == count
