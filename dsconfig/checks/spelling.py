"""What somebody may have meant by a key that does not exist."""

from collections.abc import Iterable
from difflib import SequenceMatcher
from functools import lru_cache

from dsconfig.checks.rule import Path
from dsconfig.schema.key_index import paths_of

CLOSE = 0.8
"""Least similarity (0 to 1) of a key to the one it is taken for."""
MOST_PLACES = 3
"""A name in more places than this (``enabled``, ``type``) says nothing about where it belongs."""


@lru_cache(maxsize=4096)
def plain(name: str) -> str:
    """A name without case, separators and surrounding blanks."""
    return "".join(letter for letter in name.lower() if letter.isalnum())


def same_letters(name: str, other: str) -> bool:
    """Whether two names differ in case, blanks, dashes and underscores only."""
    return plain(name) == plain(other)


def closest(name: str, known: Iterable[str]) -> str | None:
    """The known name that is spelled most alike, None where none is close."""
    wanted = plain(name)
    best, best_score = None, 0.0
    for candidate in known:
        score = _similarity(wanted, plain(candidate))
        if score > best_score:
            best, best_score = candidate, score
    return best if best_score >= CLOSE else None


def _similarity(wanted: str, candidate: str) -> float:
    if wanted == candidate:
        return 1.0
    shorter, longer = sorted((wanted, candidate), key=len)
    if len(shorter) >= 6 and longer.startswith(shorter):
        return 0.85 + 0.1 * len(shorter) / len(longer)
    if 2 * len(shorter) < CLOSE * (len(shorter) + len(longer)):
        return 0.0  # too different in length, whatever the letters
    matcher = SequenceMatcher(None, wanted, candidate)
    if matcher.quick_ratio() < CLOSE:
        return 0.0
    return matcher.ratio()


def other_places(path: Path) -> tuple[Path, ...]:
    """Where the key at ``path`` would be read: below its own block first."""
    block = path[:-1]
    places = [place for place in paths_of(path[-1]) if place != path]
    below = tuple(place for place in places if place[: len(block)] == block and block)
    if below:
        return below[:1]
    return tuple(places) if len(places) <= MOST_PLACES else ()


def is_longer_or_shorter(name: str, other: str) -> bool:
    """Whether one of two names holds the other and more: alike, and often another thing."""
    one, two = plain(name), plain(other)
    return one != two and (one in two or two in one)


def flattened(path: Path) -> tuple[Path, ...]:
    """The keys that a name may mean which joins a block's name with a key's: ``fp16_enabled``."""
    words = path[-1].split("_")
    found: list[Path] = []
    for cut in range(1, len(words)):
        block, name = "_".join(words[:cut]), "_".join(words[cut:])
        found += (
            place
            for place in paths_of(name)
            if len(place) > len(path)
            and place[: len(path) - 1] == path[:-1]
            and f"{place[-2]}_".startswith(f"{block}_")
        )
    return tuple(found)
