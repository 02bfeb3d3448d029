"""DeepSpeed release numbers."""

import re
from functools import lru_cache
from typing import NamedTuple

_PATTERN = re.compile(
    r"v?(\d{1,9})\.(\d{1,9})(?:\.(\d{1,9}))?(?:\.\d+)*"
    r"(?:[-_.]?(?:a|b|c|rc|alpha|beta|pre|preview)[-_.]?\d*)?"
    r"(?:-\d+|[-_.]?(?:post|rev|r)[-_.]?\d*)?"
    r"(?:[-_.]?dev[-_.]?\d*)?"
    r"(?:\+.*)?",
    re.ASCII | re.IGNORECASE,
)
"""A PEP 440 version; groups are the release segments, build markers are ignored."""


class Version(NamedTuple):
    """A release ``major.minor.patch``, ordered numerically."""

    major: int
    minor: int
    patch: int

    @classmethod
    def parse(cls, text: str) -> "Version":
        """Parse ``0.19.8``, ``v0.19`` or ``0.19.8+cu121``. Raises ValueError on anything else.

        Release candidates (``4.46.2rc1``), development builds (``0.19.9.dev0``) and post-releases
        (``0.19.8.post1``) count as the release itself.
        """
        return _parse(text)

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}"


@lru_cache(maxsize=256)
def _parse(text: str) -> Version:
    match = _PATTERN.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text[:40]!r} is not a DeepSpeed version; write one like 0.19.8")
    major, minor, patch = match.groups(default="0")
    return Version(int(major), int(minor), int(patch))


_LAST_PATCHES = {
    3: 16,
    4: 5,
    5: 10,
    6: 7,
    7: 7,
    8: 3,
    9: 5,
    10: 3,
    11: 2,
    12: 6,
    13: 5,
    14: 5,
    15: 4,
    16: 9,
    17: 6,
    18: 9,
    19: 8,
}
"""The last patch of each minor release 0.x of DeepSpeed."""
OLDEST = Version(0, 3, 0)
"""Oldest known release."""
NEWEST = Version(0, *max(_LAST_PATCHES.items()))
"""Newest release whose behavior was measured."""
_FIRST_PUBLISHED = 10

PUBLISHED = tuple(
    Version(0, minor, patch) for minor, patch in _LAST_PATCHES.items() if minor >= _FIRST_PUBLISHED
)
"""Releases with a published JSON Schema: the newest patch of each minor release."""


def known_release(text: str) -> Version:
    """Parse a release of DeepSpeed that a user specified.

    Raises ValueError for one that does not exist or is not supported, naming the nearest.
    """
    version = Version.parse(text)
    last = _LAST_PATCHES.get(version.minor) if version.major == 0 else None
    if last is not None and version.patch <= last:
        return version
    if last is not None:
        nearest = Version(0, version.minor, last)
    else:
        nearest = OLDEST if version < OLDEST else NEWEST
    known = f"known releases: {OLDEST} to {NEWEST}"
    raise ValueError(f"{text!r} is not a known DeepSpeed release; nearest: {nearest} ({known})")
