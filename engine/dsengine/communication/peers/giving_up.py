"""A pass that an error has ended is given up by all ranks, or by none.

[Note: giving up a pass]
A script catches an error of forward or backward and goes on, which is sound only if every rank
does: else the others wait in that pass for ever, or their collectives meet those of another one. So
before a rank gets over such a pass it tells rank 0, and waits. When all have told, rank 0 says so
and they go on. When they have given up different passes, or some have not within the time that a
rank has patience, the rank fails after all, in words that name it to every other one.
"""

import threading
from collections.abc import Callable
from dataclasses import replace

from dsengine.communication.peers.message import Kind, Message
from dsengine.communication.peers.status import STATUS


class GivingUp:
    """One rank's part; rank 0 counts."""

    def __init__(
        self, own: Message, ranks: int, send: Callable[[Message], None], news: threading.Condition
    ) -> None:
        self._own, self._ranks, self._send = own, ranks, send
        self._news = news
        self._given: dict[int, Message] = {}
        self._verdict: Message | None = None

    def hear(self, message: Message) -> None:
        """Called in the listening thread, or by rank 0 itself, holding ``news``."""
        if message.kind is Kind.AGREED:
            self._verdict = message
        else:
            self._given[message.rank] = message
            if len(self._given) == self._ranks:
                self._verdict = self._judged()
                self._given.clear()
                self._send(self._verdict)
        self._news.notify_all()

    def agree(self, name: str, cause: str, seconds: float) -> str:
        """Give up the pass ``name``, which ``cause`` has ended; return why not, "" for agreed."""
        own = replace(self._own, kind=Kind.GAVE_UP, phase=name, cause=cause)
        with self._news:
            self._verdict = None
            if own.rank == 0:
                self.hear(own)
        if own.rank != 0:
            self._send(own)
        with self._news:
            self._news.wait_for(
                lambda: self._verdict is not None or STATUS.alarm is not None,
                min(seconds, threading.TIMEOUT_MAX),
            )
            if self._verdict is not None:
                return self._verdict.cause
            if STATUS.alarm is not None:
                return STATUS.alarm.words
            return f"it was caught here, and in {seconds:.0f} s not on every other rank"

    def _judged(self) -> Message:
        passes = {each.phase: each for each in self._given.values()}
        words = "; ".join(f"rank {each.rank} gives up {name}" for name, each in passes.items())
        cause = "" if len(passes) == 1 else f"the ranks give up different passes: {words}"
        return replace(self._own, kind=Kind.AGREED, phase=next(iter(passes)), cause=cause)
