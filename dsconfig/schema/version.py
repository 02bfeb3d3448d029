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


OLDEST = Version(0, 3, 0)
"""Oldest known release."""
NEWEST = Version(0, 19, 8)
"""Newest release whose behavior was measured."""

PUBLISHED = (
    Version(0, 10, 3),
    Version(0, 11, 2),
    Version(0, 12, 6),
    Version(0, 13, 5),
    Version(0, 14, 5),
    Version(0, 15, 4),
    Version(0, 16, 9),
    Version(0, 17, 6),
    Version(0, 18, 9),
    NEWEST,
)
"""Releases with a published JSON Schema: the newest patch of each minor release."""
