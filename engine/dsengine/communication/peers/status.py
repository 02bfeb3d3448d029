"""What this rank is doing and what it knows of failures; also read by the receiving thread."""

from time import monotonic
from typing import Any

from dsengine.communication.peers.message import Message, cause_of

IN_LOOP = {"forward": 1.0, "backward": 2.0, "step": 3.0}
"""The phases of a micro batch, in order."""


class Status:
    """One object per process. Plain attributes, because phases change often."""

    def __init__(self) -> None:
        self.phase: str | None = None
        """The running engine method; None outside of the engine."""
        self.counters: Any = None
        """Those of the engine of the latest phase."""
        self.steps = 0
        """Completed ``step`` phases of all engines since the first was built."""
        self.last = ""
        """The phase that ended last."""
        self.reached = 0.0
        """The greatest ``progress`` of a phase that has ended, also with an error."""
        self.since = monotonic()
        """When the running phase began or the last one ended."""
        self.needs_all = False
        """Whether the running phase has collectives."""
        self.failure: Message | None = None
        """The first failure of another rank."""
        self.aborted = False
        """Whether communicators were aborted: results computed since then are invalid."""
        self.cause = ""
        """What the last phase raised; empty if it succeeded or another one has begun."""
        self.failed_in = ""
        """Description of the phase that raised it."""

    def record_error(self, error: BaseException) -> None:
        """Record what the running phase raised, as text: the exception would keep tensors alive."""
        self.cause, self.failed_in = cause_of(error), self.description

    @property
    def description(self) -> str:
        """The phase as ``backward() of step 7`` or ``save_checkpoint() after step 6``."""
        if self.phase is None:
            return ""
        if self.counters is None:
            return f"{self.phase}()"
        done, in_loop = self.counters.global_steps, self.phase in IN_LOOP
        return (
            f"{self.phase}() of step {done + 1}" if in_loop else f"{self.phase}() after step {done}"
        )

    @property
    def last_description(self) -> str:
        """The last phase as ``backward(), 6 step(s) done``; "" before the first phase."""
        done = "" if self.counters is None else f", {self.counters.global_steps} step(s) done"
        return f"{self.last}(){done}" if self.last else ""

    @property
    def progress(self) -> float:
        """A number that grows from phase to phase: the rank with the greater number waits.

        It counts the phases of all engines, because each engine has its own counters.
        """
        if self.counters is None:
            return -1.0
        running, last = IN_LOOP.get(self.phase or "", 0.0), IN_LOOP.get(self.last, 0.0)
        outside = last + 0.5 if 0 < last < len(IN_LOOP) else 0.0
        within = running if self.phase is not None else outside
        return self.steps * (len(IN_LOOP) + 1) + within


STATUS = Status()
