"""One module per oracle. See ``tests/replay.py``."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    """One case of an oracle: what the real program did, and what we say."""

    name: str
    expected: object
    got: object
    agrees: bool
