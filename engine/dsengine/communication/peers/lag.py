"""Who keeps the others waiting, said while they wait.

[Note: how a rank that lags is found]
A rank that has been in one phase of the engine for longer than it has patience tells rank 0 so.
Rank 0 then asks all where they are, waits a moment for the answers, and prints who is behind, what
it does, and who waits for it; a rank that does not answer holds its interpreter, or is stopped. A
rank that hears nothing from rank 0 then says that itself. After each time patience is twice as
long, until that phase has ended. Answers come from the thread that listens, so a rank that sleeps
or computes gives them. While no rank waits, nothing is sent.
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

from dsengine.communication.peers.message import Kind, Message
from dsengine.communication.peers.status import STATUS

PATIENCE = "DSENGINE_PATIENCE"
"""The variable that says after how many seconds in one phase others are asked for."""
DEFAULT_PATIENCE = 30.0
ANSWER_SECONDS = 5.0
"""What the answers may take."""
MOST_NAMED = 8
"""Ranks that are named one by one."""


def patience() -> float:
    """Seconds; infinite where nobody is to be asked for.

    Raises ValueError when the variable holds no number above 0.
    """
    text = os.environ.get(PATIENCE, "").strip()
    try:
        seconds = float(text) if text else DEFAULT_PATIENCE
    except ValueError:
        seconds = math.nan
    if not seconds > 0:
        raise ValueError(
            f"{PATIENCE} is {text!r}: give the seconds that a rank waits before it asks for the "
            "others, or inf"
        )
    return seconds


class LagWatch:
    """One rank's part: it asks and answers; rank 0 tells."""

    def __init__(
        self,
        own: Message,
        known: Mapping[int, Message],
        ranks: int,
        seconds: float,
        send: Callable[[Message], None],
    ) -> None:
        self._own, self._known, self._ranks = own, known, ranks
        self._patience = self._limit = seconds
        self._send = send
        self._answers: dict[int, Message] = {}
        self._heard = threading.Condition()
        self._is_asked_for = False
        self._is_asked = False
        self._told_at = -math.inf
        self._closed = threading.Event()
        if math.isfinite(seconds):
            threading.Thread(target=self._run, name="dsengine-lag", daemon=True).start()

    def close(self) -> None:
        self._closed.set()

    def hear(self, message: Message) -> None:
        """Called in the listening thread."""
        with self._heard:
            if message.kind is Kind.STILL:
                self._is_asked_for = True
            elif message.kind is Kind.WHERE:
                self._is_asked = True
            elif message.kind is Kind.HERE:
                self._answers[message.rank] = message
            self._heard.notify_all()
        if message.kind is Kind.WHERE:
            self._send(self._here())

    def _run(self) -> None:
        while not self._closed.wait(self._patience / 4):
            waited = 0.0 if STATUS.phase is None else monotonic() - STATUS.since
            if waited < self._patience:
                self._limit = self._patience
            is_long = waited >= self._limit
            if is_long:
                self._limit = 2 * waited
            if self._own.rank == 0:
                just_told = monotonic() - self._told_at < self._patience / 2
                if (is_long or self._is_asked_for) and not just_told:
                    self._ask_all()
            elif is_long:
                self._ask_first(waited)

    def _ask_all(self) -> None:
        """Rank 0: have all say where they are, and tell what follows from it."""
        self._told_at = monotonic()
        with self._heard:
            self._is_asked_for = False
            self._answers = {0: self._here()}
        self._send(replace(self._own, kind=Kind.WHERE))
        with self._heard:
            self._heard.wait_for(lambda: len(self._answers) == self._ranks, ANSWER_SECONDS)
            answers = dict(self._answers)
        silent = [each for rank, each in sorted(self._known.items()) if rank not in answers]
        _say(told(list(answers.values()), silent, self._patience))

    def _ask_first(self, waited: float) -> None:
        """Any other rank: let rank 0 ask; say so if it cannot."""
        with self._heard:
            self._is_asked = False
        self._send(replace(self._own, kind=Kind.STILL))
        with self._heard:  # it looks for those who ask as often as it looks at itself
            seconds = self._patience + ANSWER_SECONDS
            self._heard.wait_for(lambda: self._is_asked or STATUS.alarm is not None, seconds)
            if self._is_asked or STATUS.alarm is not None or STATUS.phase is None:
                return
        waited += seconds
        _say(
            f"this rank, {self._own.rank}, has been in {STATUS.words} for {waited:.0f} s, and rank "
            "0 does not answer: its interpreter is busy, or it is stopped"
        )

    def _here(self) -> Message:
        return replace(
            self._own,
            kind=Kind.HERE,
            phase=STATUS.words,
            last=STATUS.words_outside,
            place=_place(),
            seconds=monotonic() - STATUS.since,
            progress=STATUS.progress,
        )


def told(answers: list[Message], silent: list[Message], patience: float) -> str:
    """Say who lags and who waits; "" where nobody waits any more, or all are in one place."""
    furthest = max(each.progress for each in answers)
    waiting = [each for each in answers if each.phase and each.progress == furthest]
    behind = [each for each in answers if each not in waiting]
    longest = max((each.seconds for each in waiting), default=0.0)
    if longest < 0.9 * patience:
        return ""
    places = {each.phase for each in waiting}
    if len(places) > 1:  # none is behind, and they wait for each other
        behind, waiting = waiting + behind, []
    elif not behind and not silent:
        if longest < 10 * patience:
            return ""
        return f"all ranks have been in {places.pop()} for {longest:.0f} s; {_where(answers[0])}"
    lagging = [_where(each) for each in behind] + [
        f"{each.words}"
        if each.kind is Kind.LEFT
        else f"{each.who} does not answer: its interpreter is busy, or it is stopped"
        for each in silent
    ]
    words = "; ".join(lagging[:MOST_NAMED])
    if (more := len(lagging) - MOST_NAMED) > 0:
        words += f"; {more} more ranks are behind"
    if waiting:
        ranks = ", ".join(str(each.rank) for each in waiting[:MOST_NAMED])
        more = len(waiting) - MOST_NAMED
        named = f"rank {ranks} waits" if len(waiting) == 1 else f"ranks {ranks} wait"
        named = f"ranks {ranks} and {more} more wait" if more > 0 else named
        return f"{named} in {waiting[0].phase} since {longest:.0f} s: {words}"
    return f"ranks are in different places since {longest:.0f} s: {words}"


def _where(here: Message) -> str:
    if here.phase:
        return f"{here.who} has been in {here.phase} for {here.seconds:.0f} s, at {here.place}"
    after = f" (last: {here.last})" if here.last else ""
    return (
        f"{here.who} has been outside of the engine for {here.seconds:.0f} s{after}, "
        f"at {here.place}"
    )


def _place() -> str:
    """The line that the main thread runs, and the one of the script that has led to it."""
    main = threading.main_thread().ident
    innermost = sys._current_frames().get(main or 0)
    if innermost is None:
        return "an unknown place"
    script: FrameType | None = innermost
    while script is not None and script.f_globals.get("__name__") != "__main__":
        script = script.f_back
    own = _line(innermost)
    return own if script in (None, innermost) else f"{own}, from {_line(script)}"


def _line(frame: Any) -> str:
    return f"{frame.f_code.co_filename}:{frame.f_lineno} ({frame.f_code.co_name})"


def _say(words: str) -> None:
    if words:
        print(f"dsengine: {words}", file=sys.stderr, flush=True)
