"""A micro step that raised is aborted by all ranks or by none.

[Note: aborting a micro step]
A script may catch an error of forward or backward and continue. This is sound only if every rank
does: otherwise the others wait in that micro step forever, or their collectives are matched with
those of another one. So before a rank continues, it sends rank 0 an abort request and waits. When
all ranks have requested it, rank 0 replies and they continue. If they abort different micro steps,
or some send no request within DSENGINE_PATIENCE, the rank fails and the others report it.

Ranks may run out of memory in different blocks of one forward. Where the host runs ahead of the
device they have then issued different numbers of collectives, and the first one of the next pass
would be matched with a leftover of this one: a hang, or silently wrong weights. So each request
says how many its pass has issued in each group, and ranks continue only if these are equal.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from dsengine.communication.peers.message import Message, MessageKind
from dsengine.communication.peers.status import STATUS


class AbortAgreement:
    """One rank's side of the agreement; rank 0 counts the requests."""

    def __init__(
        self, own: Message, ranks: int, send: Callable[[Message], None], news: threading.Condition
    ) -> None:
        self._own, self._ranks, self._send = own, ranks, send
        self._news = news
        self._requests: dict[int, Message] = {}
        self._reply: Message | None = None

    def on_message(self, message: Message) -> None:
        """Process a message: called with ``news`` held, by the receiving thread or by rank 0."""
        if message.kind is MessageKind.ABORT_REPLY:
            self._reply = message
        else:
            self._requests[message.rank] = message
            if len(self._requests) == self._ranks:
                self._reply = self._make_reply()
                self._requests.clear()
                self._send(self._reply)
        self._news.notify_all()

    def agree(self, name: str, cause: str, issued: Mapping[str, int], seconds: float) -> str:
        """Return "" if all ranks abort the micro step ``name``, otherwise the reason.

        ``issued``: how many collectives it has issued on this rank, by group.
        """
        own = replace(
            self._own,
            kind=MessageKind.ABORT_REQUEST,
            phase=name,
            cause=cause,
            collectives=issued,
        )
        with self._news:
            self._reply = None
            if own.rank == 0:
                self.on_message(own)
        if own.rank != 0:
            self._send(own)
        with self._news:
            self._news.wait_for(
                lambda: self._reply is not None or STATUS.failure is not None,
                min(seconds, threading.TIMEOUT_MAX),
            )
            if self._reply is not None:
                return self._reply.cause
            if STATUS.failure is not None:
                return STATUS.failure.description
            return f"caught on this rank, but not on every other rank within {seconds:.0f} s"

    def _make_reply(self) -> Message:
        phases = {request.phase: request for request in self._requests.values()}
        cause = ""
        if len(phases) > 1:
            named = "; ".join(f"rank {request.rank}: {name}" for name, request in phases.items())
            cause = f"the ranks abort different micro steps: {named}"
        else:
            cause = unequal_collectives([*self._requests.values()])
        kind = MessageKind.ABORT_REPLY
        return replace(self._own, kind=kind, phase=next(iter(phases)), cause=cause)


def unequal_collectives(requests: Sequence[Message]) -> str:
    """Return in which group the ranks have issued different numbers of collectives, "" if none."""
    for group in dict.fromkeys(name for request in requests for name in request.collectives):
        counts = {r.rank: r.collectives[group] for r in requests if group in r.collectives}
        fewest, most = min(counts, key=counts.__getitem__), max(counts, key=counts.__getitem__)
        if counts[fewest] != counts[most]:
            return (
                f"rank {fewest} had issued {counts[fewest]} collectives when it failed and rank "
                f"{most} {counts[most]} ({group}), so later ones would be matched with the wrong "
                "ones: restart from the last checkpoint"
            )
    return ""
