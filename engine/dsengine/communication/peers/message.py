"""What a rank tells the others of itself: that it has left, failed, or is back."""

import json
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Self

LONGEST_CAUSE = 2000
"""Characters of an exception's message that are passed on."""


class End(StrEnum):
    FAILED = "failed"
    """An exception ended the process."""
    DIED = "died"
    """The process is gone, or cannot be reached, and has said nothing."""
    LEFT = "left"
    """The rank let go of its last engine, or ended, in good order."""
    BACK = "back"
    """A rank that had left has begun to build another engine."""


@dataclass(frozen=True, slots=True)
class Message:
    """One rank's word. ``phase``: what it did. ``cause``: an exception's type and message."""

    rank: int
    host: str
    process: int
    end: End
    phase: str = ""
    cause: str = ""

    def to_line(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> Self:
        """Raises ValueError, TypeError or KeyError for anything else."""
        values = json.loads(line)
        return cls(**values | {"end": End(values["end"])})

    @property
    def words(self) -> str:
        """Which rank, and what happened to it."""
        who = f"rank {self.rank} (host {self.host}, process {self.process})"
        where = f" in {self.phase}" if self.phase else ""
        if self.end is End.FAILED:
            return f"{who} failed{where}: {self.cause}"
        if self.end is End.DIED:
            return (
                f"{who} is gone without a word: it was killed by a signal or for lack of memory, "
                "or cannot be reached any more (see its own output and its host's system log)"
            )
        return f"{who} had already ended its training{where}"


def cause_of(error: BaseException) -> str:
    """Type and message of an exception, in one line."""
    text = " ".join(str(error).split())
    words = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return words[:LONGEST_CAUSE]
