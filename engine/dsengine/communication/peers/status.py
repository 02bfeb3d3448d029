"""What this rank is doing, and what it has heard: read by the thread that listens to others."""

from typing import Any

from dsengine.communication.peers.message import Message, cause_of


class Status:
    """One object per process. Plain attributes: a phase may cost nothing to note."""

    def __init__(self) -> None:
        self.phase: str | None = None
        """The method of the engine that is running; None outside of it."""
        self.counters: Any = None
        """Those of the engine whose phase began last."""
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
        done = self.counters.global_steps
        in_loop = self.phase in ("forward", "backward", "step")
        return (
            f"{self.phase}() of step {done + 1}" if in_loop else f"{self.phase}() after step {done}"
        )


STATUS = Status()
