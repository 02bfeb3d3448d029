"""Messages between ranks: state changes, status, and abort requests."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Self

MAX_CAUSE_LENGTH = 2000
"""Characters of an exception's message that are sent."""


class MessageKind(StrEnum):
    FAILED = "failed"
    """An exception ended the process."""
    DIED = "died"
    """The process ended, or became unreachable, without a final message."""
    LEFT = "left"
    """The rank closed its last engine, or ended normally."""
    JOINED = "joined"
    """The rank has begun to build an engine."""
    WAITING = "waiting"
    """To rank 0: the rank has been in one phase for longer than DSENGINE_PATIENCE."""
    STATUS_REQUEST = "status request"
    """From rank 0: each rank replies with STATUS."""
    STATUS = "status"
    """The reply: ``phase`` ("" outside of the engine), ``last``, ``location``, ``seconds``."""
    ABORT_REQUEST = "abort request"
    """To rank 0: the rank wants to continue without the micro step ``phase``, which raised
    ``cause``, after it issued ``collectives``."""
    ABORT_REPLY = "abort reply"
    """From rank 0: all ranks abort ``phase``, or, with a ``cause``, they do not agree."""


STATE_CHANGES = frozenset(
    {MessageKind.FAILED, MessageKind.DIED, MessageKind.LEFT, MessageKind.JOINED}
)
"""Sent to all ranks, including those that connect later."""


@dataclass(frozen=True, slots=True)
class Message:
    """One rank's message. ``phase``: the running phase. ``cause``: an exception's type and message.

    ``last``: the phase that ended last. ``location``: the line being executed. ``seconds``: how
    long the rank has been there. ``progress`` grows from phase to phase, equally on all ranks.
    ``engines``: how many the rank has begun to build. ``collectives``: how many were issued, by
    group.
    """

    rank: int
    host: str
    process: int
    kind: MessageKind
    phase: str = ""
    cause: str = ""
    last: str = ""
    location: str = ""
    seconds: float = 0.0
    progress: float = 0.0
    engines: int = 0
    collectives: Mapping[str, int] = field(default_factory=dict[str, int])

    def to_line(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> Self:
        """Raise ValueError, TypeError or KeyError for anything that is not a message."""
        values = json.loads(line)
        return cls(**values | {"kind": MessageKind(values["kind"])})

    @property
    def sender(self) -> str:
        return f"rank {self.rank} (host {self.host}, process {self.process})"

    @property
    def description(self) -> str:
        """Return which rank failed or ended, and how."""
        where = f" in {self.phase}" if self.phase else ""
        if self.kind is MessageKind.FAILED:
            return f"{self.sender} failed{where}: {self.cause}"
        if self.kind is MessageKind.DIED:
            return (
                f"{self.sender} disappeared without an error: it was killed (for example by the "
                "out-of-memory killer) or is unreachable; see its output and its host's system log"
            )
        return f"{self.sender} had already ended its training{where}"


def cause_of(error: BaseException) -> str:
    """Return type and message of an exception in one line."""
    text = " ".join(str(error).split())
    cause = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return cause[:MAX_CAUSE_LENGTH]
