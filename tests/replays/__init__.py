"""One module per oracle. See ``tests/replay.py``."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    """One case of an oracle: the recorded behavior of the real program, and ours."""

    name: str
    expected: object
    got: object
    agrees: bool
