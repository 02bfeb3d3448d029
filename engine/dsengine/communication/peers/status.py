"""What this rank is doing, and what it has heard: read by the thread that listens to others."""

from time import monotonic
from typing import Any

from dsengine.communication.peers.message import Message, cause_of

IN_LOOP = {"forward": 1.0, "backward": 2.0, "step": 3.0}
"""The phases of a micro batch, in their order."""


class Status:
    """One object per process. Plain attributes: a phase may cost nothing to note."""

    def __init__(self) -> None:
        self.phase: str | None = None
        """The method of the engine that is running; None outside of it."""
        self.counters: Any = None
        """Those of the engine whose phase began last."""
        self.steps = 0
        """Phases ``step`` that have ended well, of all engines, since the first was built."""
        self.last = ""
        """The phase that has ended last."""
        self.since = monotonic()
        """When the running phase began, or the last one ended."""
        self.alarm: Message | None = None
        """How the first rank failed, once one has."""
        self.aborted = False
        """Whether communicators were aborted: what a phase has computed since is worth nothing."""
        self.cause = ""
        """What the last phase raised; empty when it went well, or another one has begun."""
        self.failed_in = ""
        """The phase that raised it, in words."""

    def note(self, error: BaseException) -> None:
        """Keep what the running phase has raised, in words: the exception would hold tensors."""
        self.cause, self.failed_in = cause_of(error), self.words

    @property
    def words(self) -> str:
        """The phase for a message: ``backward() of step 7``, ``save_checkpoint() after step 6``."""
        if self.phase is None:
            return ""
        if self.counters is None:
            return f"{self.phase}()"
        done, in_loop = self.counters.global_steps, self.phase in IN_LOOP
        return (
            f"{self.phase}() of step {done + 1}" if in_loop else f"{self.phase}() after step {done}"
        )

    @property
    def words_outside(self) -> str:
        """What has ended last: ``backward(), 6 step(s) done``; "" before the first phase."""
        done = "" if self.counters is None else f", {self.counters.global_steps} step(s) done"
        return f"{self.last}(){done}" if self.last else ""

    @property
    def progress(self) -> float:
        """How far this rank is: of two that train the same, the greater number waits.

        Each engine has counters of its own, so what is counted here is of all of them.
        """
        if self.counters is None:
            return -1.0
        running, last = IN_LOOP.get(self.phase or "", 0.0), IN_LOOP.get(self.last, 0.0)
        outside = last + 0.5 if 0 < last < len(IN_LOOP) else 0.0
        within = running if self.phase is not None else outside
        return self.steps * (len(IN_LOOP) + 1) + within


STATUS = Status()
