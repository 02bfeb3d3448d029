"""Straggler detection.

[Note: straggler detection]
A rank that has been in one phase of the engine for longer than DSENGINE_PATIENCE reports this to
rank 0. Rank 0 then requests the status of all ranks, waits a moment for the replies, and prints who
is behind, what it does and who waits for it; a rank that does not reply holds the GIL or is
stopped. A rank that receives nothing from rank 0 prints that itself. Each report doubles the time
to the next one until the phase ends. The receiving thread replies, so a rank that sleeps or
computes can still reply. While no rank waits, nothing is sent.
"""

import math
import os
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from time import monotonic
from types import FrameType
from typing import Any

from dsengine.communication.peers.message import Message, MessageKind
from dsengine.communication.peers.status import STATUS
from dsengine.stderr import print_error

PATIENCE = "DSENGINE_PATIENCE"
"""Environment variable: seconds in one phase after which stragglers are reported."""
DEFAULT_PATIENCE = 30.0
REPLY_SECONDS = 5.0
"""How long rank 0 waits for replies."""
MAX_NAMED = 8
"""Ranks listed individually in a report."""


def patience() -> float:
    """Return DSENGINE_PATIENCE in seconds; infinite turns straggler detection off.

    Raises ValueError unless the variable is a number above 0.
    """
    text = os.environ.get(PATIENCE, "").strip()
    try:
        seconds = float(text) if text else DEFAULT_PATIENCE
    except ValueError:
        seconds = math.nan
    if not seconds > 0:
        raise ValueError(
            f"{PATIENCE} is {text!r}: set it to the seconds that a rank waits before stragglers "
            "are reported, or to inf"
        )
    return seconds


class StragglerDetector:
    """One rank's side of the detection; rank 0 prints the report. ``start`` begins it."""

    def __init__(
        self,
        own: Message,
        states: Mapping[int, Message],
        ranks: int,
        seconds: float,
        send: Callable[[Message], None],
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._own, self._states, self._ranks = own, states, ranks
        self._patience = self._limit = seconds
        self._send, self._clock = send, clock
        self._replies: dict[int, Message] = {}
        self._received = threading.Condition()
        self._report_requested = False
        self._status_requested = False
        self._reported_at = -math.inf
        self._closed = threading.Event()

    def start(self) -> None:
        """Check in a thread, four times within the patience, until ``close``."""
        if math.isfinite(self._patience):
            threading.Thread(target=self._run, name="dsengine-lag", daemon=True).start()

    def close(self) -> None:
        self._closed.set()

    def on_message(self, message: Message) -> None:
        """Process a message in the receiving thread."""
        with self._received:
            if message.kind is MessageKind.WAITING:
                self._report_requested = True
            elif message.kind is MessageKind.STATUS_REQUEST:
                self._status_requested = True
            elif message.kind is MessageKind.STATUS:
                self._replies[message.rank] = message
            self._received.notify_all()
        if message.kind is MessageKind.STATUS_REQUEST:
            self._send(self._status())

    def _run(self) -> None:
        while not self._closed.wait(self._patience / 4):
            self.check()

    def check(self) -> None:
        """Report or request a report if this rank waits for long, or if another one has."""
        waited = 0.0 if STATUS.phase is None else self._clock() - STATUS.since
        if waited < self._patience:
            self._limit = self._patience
        is_long = waited >= self._limit
        if is_long:
            self._limit = 2 * waited
        if self._own.rank == 0:
            is_recent = self._clock() - self._reported_at < self._patience / 2
            if (is_long or self._report_requested) and not is_recent:
                self._report()
        elif is_long:
            self._request_report(waited)

    def _report(self) -> None:
        """Request the status of all ranks and print the report (rank 0)."""
        self._reported_at = self._clock()
        with self._received:
            self._report_requested = False
            self._replies = {0: self._status()}
        self._send(replace(self._own, kind=MessageKind.STATUS_REQUEST))
        with self._received:
            self._received.wait_for(lambda: len(self._replies) == self._ranks, REPLY_SECONDS)
            replies = dict(self._replies)
        silent = [state for rank, state in sorted(self._states.items()) if rank not in replies]
        _print(straggler_report(list(replies.values()), silent, self._patience))

    def _request_report(self, waited: float) -> None:
        """Request a report from rank 0; print one here if rank 0 does not respond."""
        with self._received:
            self._status_requested = False
        self._send(replace(self._own, kind=MessageKind.WAITING))
        with self._received:  # rank 0 checks for requests as often as it checks itself
            seconds = self._patience + REPLY_SECONDS
            self._received.wait_for(
                lambda: self._status_requested or STATUS.failure is not None, seconds
            )
            if self._status_requested or STATUS.failure is not None or STATUS.phase is None:
                return
        waited += seconds
        _print(
            f"this rank, {self._own.rank}, has been in {STATUS.description} for {waited:.0f} s, "
            "and rank 0 does not respond: its interpreter is busy, or it is stopped"
        )

    def _status(self) -> Message:
        return replace(
            self._own,
            kind=MessageKind.STATUS,
            phase=STATUS.description,
            last=STATUS.last_description,
            location=_location(),
            seconds=self._clock() - STATUS.since,
            progress=STATUS.progress,
        )


def straggler_report(replies: list[Message], silent: list[Message], patience: float) -> str:
    """Return who is behind and who waits; "" if no rank waits or all are in the same phase."""
    furthest = max(reply.progress for reply in replies)
    waiting = [reply for reply in replies if reply.phase and reply.progress == furthest]
    behind = [reply for reply in replies if reply not in waiting]
    longest = max((reply.seconds for reply in waiting), default=0.0)
    if longest < 0.9 * patience:
        return ""
    phases = {reply.phase for reply in waiting}
    if len(phases) > 1:  # none is behind: they wait for each other
        behind, waiting = waiting + behind, []
    elif not behind and not silent:
        if longest < 10 * patience:
            return ""
        return f"all ranks have been in {phases.pop()} for {longest:.0f} s; {_position(replies[0])}"
    stragglers = [_position(reply) for reply in behind] + [
        f"{state.description}"
        if state.kind is MessageKind.LEFT
        else f"{state.sender} does not respond: its interpreter is busy, or it is stopped"
        for state in silent
    ]
    listed = "; ".join(stragglers[:MAX_NAMED])
    if (more := len(stragglers) - MAX_NAMED) > 0:
        listed += f"; {more} more ranks are behind"
    if waiting:
        ranks = ", ".join(str(reply.rank) for reply in waiting[:MAX_NAMED])
        more = len(waiting) - MAX_NAMED
        subject = f"rank {ranks} has" if len(waiting) == 1 else f"ranks {ranks} have"
        subject = f"ranks {ranks} and {more} more have" if more > 0 else subject
        return f"{subject} been waiting in {waiting[0].phase} for {longest:.0f} s: {listed}"
    return f"ranks have been in different phases for {longest:.0f} s: {listed}"


def _position(status: Message) -> str:
    seconds = f"{status.seconds:.0f}"
    if status.phase:
        return f"{status.sender} has been in {status.phase} for {seconds} s, at {status.location}"
    after = f" (last: {status.last})" if status.last else ""
    return (
        f"{status.sender} has been outside of the engine for {seconds} s{after}, "
        f"at {status.location}"
    )


def _location() -> str:
    """Return the line that the main thread executes and the script's line that led to it."""
    main = threading.main_thread().ident
    innermost = sys._current_frames().get(main or 0)
    if innermost is None:
        return "an unknown location"
    script: FrameType | None = innermost
    while script is not None and script.f_globals.get("__name__") != "__main__":
        script = script.f_back
    own = line_of(innermost)
    return own if script in (None, innermost) else f"{own}, from {line_of(script)}"


def position_of(frame: Any) -> tuple[int, int]:
    """Return a value that stays equal while ``frame`` executes the same instruction."""
    return id(frame), frame.f_lasti


def line_of(frame: Any) -> str:
    """Return the file, line and function that ``frame`` executes."""
    return f"{frame.f_code.co_filename}:{frame.f_lineno} ({frame.f_code.co_name})"


def _print(message: str) -> None:
    if message:
        print_error(f"dsengine: {message}")
