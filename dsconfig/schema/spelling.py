"""Suggestions for misspelled and misplaced keys."""

from collections.abc import Iterable
from difflib import SequenceMatcher
from functools import lru_cache

from dsconfig.schema.key_index import paths_of
from dsconfig.schema.paths import KeyPath

CLOSE = 0.8
"""Minimum similarity (0 to 1) of a suggestion."""
MOST_PATHS = 3
"""A name in more blocks than this (``enabled``, ``type``) does not suggest a block."""


@lru_cache(maxsize=4096)
def plain(name: str) -> str:
    """Return a name in lower case, without separators and spaces."""
    return "".join(letter for letter in name.lower() if letter.isalnum())


def same_letters(name: str, other: str) -> bool:
    """Return whether two names differ only in case, spaces, dashes and underscores."""
    return plain(name) == plain(other)


def closest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name with the closest spelling, or None."""
    wanted = plain(name)
    best, best_score = None, 0.0
    for candidate in known:
        score = _similarity(wanted, plain(candidate))
        if score > best_score:
            best, best_score = candidate, score
    return best if best_score >= CLOSE else None


@lru_cache(maxsize=2**16)  # an editor checks a file at every keystroke
def _similarity(wanted: str, candidate: str) -> float:
    if wanted == candidate:
        return 1.0
    shorter, longer = sorted((wanted, candidate), key=len)
    if len(shorter) >= 6 and longer.startswith(shorter):
        return 0.85 + 0.1 * len(shorter) / len(longer)
    if 2 * len(shorter) < CLOSE * (len(shorter) + len(longer)):
        return 0.0  # too different in length
    matcher = SequenceMatcher(None, wanted, candidate)
    if matcher.quick_ratio() < CLOSE:
        return 0.0
    return matcher.ratio()


def other_paths(path: KeyPath) -> tuple[KeyPath, ...]:
    """Return the paths at which the name is a known key, preferring its own block."""
    block = path[:-1]
    paths = [other for other in paths_of(path[-1]) if other != path]
    nested = tuple(other for other in paths if other[: len(block)] == block and block)
    if nested:
        return nested[:1]
    return tuple(paths) if len(paths) <= MOST_PATHS else ()


def is_longer_or_shorter(name: str, other: str) -> bool:
    """Return whether one name contains the other: similar spelling, often another meaning."""
    first, second = plain(name), plain(other)
    return first != second and (first in second or second in first)


def has_other_ending(name: str, other: str) -> bool:
    """Return whether names differ only by one or two last letters: a plural, or letters missing."""
    shorter, longer = sorted((name.lower(), other.lower()), key=len)
    ending = longer[len(shorter) :]
    return (
        len(shorter) >= 5 and longer.startswith(shorter) and len(ending) <= 2 and ending.isalpha()
    )


def has_other_word(name: str, other: str) -> bool:
    """Return whether names with as many words differ in one that is not a misspelling."""
    words, others = name.lower().split("_"), other.lower().split("_")
    return len(words) == len(others) and any(
        SequenceMatcher(None, word, meant).ratio() < 0.5
        for word, meant in zip(words, others, strict=True)
    )


def flattened(path: KeyPath) -> tuple[KeyPath, ...]:
    """Return the keys that a joined name such as ``fp16_enabled`` may stand for."""
    words = path[-1].split("_")
    candidates: list[KeyPath] = []
    for cut in range(1, len(words)):
        block, name = "_".join(words[:cut]), "_".join(words[cut:])
        candidates += (
            other
            for other in paths_of(name)
            if len(other) > len(path)
            and other[: len(path) - 1] == path[:-1]
            and f"{other[-2]}_".startswith(f"{block}_")
        )
    return tuple(candidates)
