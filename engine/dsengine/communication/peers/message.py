"""What a rank tells the others of itself: what became of it, where it is, what it gives up."""

import json
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Self

LONGEST_CAUSE = 2000
"""Characters of an exception's message that are passed on."""


class Kind(StrEnum):
    FAILED = "failed"
    """An exception ended the process."""
    DIED = "died"
    """The process is gone, or cannot be reached, and has said nothing."""
    LEFT = "left"
    """The rank let go of its last engine, or ended, in good order."""
    BACK = "back"
    """A rank that had left has begun to build another engine."""
    STILL = "still"
    """To rank 0: the rank has waited in one phase for longer than it has patience."""
    WHERE = "where"
    """From rank 0: each rank is to say where it is."""
    HERE = "here"
    """The answer: ``phase``, or none outside of the engine, and what follows it below."""
    GAVE_UP = "gave up"
    """To rank 0: the rank is about to go on without the pass ``phase``, which ``cause`` ended."""
    AGREED = "agreed"
    """From rank 0: all have given up ``phase``, or, with a ``cause``, not the same one."""


ENDS = frozenset({Kind.FAILED, Kind.DIED, Kind.LEFT, Kind.BACK})
"""What became of a rank: passed on to all, those too that connect later."""


@dataclass(frozen=True, slots=True)
class Message:
    """One rank's word. ``phase``: what it did. ``cause``: an exception's type and message.

    ``last``: the phase that has ended last. ``place``: the line of the script that runs.
    ``seconds``: for how long the rank has been where it is.
    ``progress`` grows from phase to phase, alike on all ranks.
    """

    rank: int
    host: str
    process: int
    kind: Kind
    phase: str = ""
    cause: str = ""
    last: str = ""
    place: str = ""
    seconds: float = 0.0
    progress: float = 0.0

    def to_line(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> Self:
        """Raises ValueError, TypeError or KeyError for anything else."""
        values = json.loads(line)
        return cls(**values | {"kind": Kind(values["kind"])})

    @property
    def who(self) -> str:
        return f"rank {self.rank} (host {self.host}, process {self.process})"

    @property
    def words(self) -> str:
        """Which rank, and what happened to it."""
        where = f" in {self.phase}" if self.phase else ""
        if self.kind is Kind.FAILED:
            return f"{self.who} failed{where}: {self.cause}"
        if self.kind is Kind.DIED:
            return (
                f"{self.who} is gone without a word: it was killed by a signal or for lack of "
                "memory, or cannot be reached any more (see its own output and its host's system "
                "log)"
            )
        return f"{self.who} had already ended its training{where}"


def cause_of(error: BaseException) -> str:
    """Type and message of an exception, in one line."""
    text = " ".join(str(error).split())
    words = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return words[:LONGEST_CAUSE]
