"""This process's part in the watch: what it says of itself, hears of others, and does about it."""

import atexit
import multiprocessing
import os
import socket
import sys
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from multiprocessing.util import Finalize
from typing import Any

import torch.distributed as dist

from dsengine.communication.peers.abort import end_if_stuck
from dsengine.communication.peers.errors import RankFailedError, stems_from_communication
from dsengine.communication.peers.giving_up import GivingUp
from dsengine.communication.peers.lag import LagWatch, patience
from dsengine.communication.peers.links import Address, Hub, Spoke
from dsengine.communication.peers.message import Kind, Message, cause_of
from dsengine.communication.peers.status import STATUS
from dsengine.torch_private import default_store

EXPLANATION_SECONDS = 3.0
"""How long an error of the communication waits for news of the rank that caused it."""
KEY = "dsengine/peers"


class Watch:
    """The ranks of one default process group, watching each other."""

    _count = 0

    def __init__(self, group: Any, store: Any) -> None:
        self._patience = patience()
        Watch._count += 1
        self.group = weakref.ref(group)
        self.engines = 0
        """Engines of this process that are in use, or being built."""
        self._known: dict[int, Message] = {}
        """By rank, the last of ``ENDS`` that was heard of it."""
        self._left: dict[int, Message] = {}
        self._news = threading.Condition()
        self._has_ended = False
        self._own = Message(group.rank(), socket.gethostname(), os.getpid(), Kind.BACK)
        self._giving_up = GivingUp(self._own, group.size(), self._send, self._news)
        self._lag = LagWatch(self._own, self._known, group.size(), self._patience, self._send)
        key = f"{KEY}/{Watch._count}"
        if self._own.rank == 0:
            self._link: Hub | Spoke = Hub(self._own, _own_names(), self._hear)
            store.set(key, self._link.address.to_bytes())
        else:
            self._link = Spoke(self._own, lambda: _published(store, key), self._hear)

    def _send(self, message: Message) -> None:
        self._link.send(message)

    def say(self, kind: Kind, phase: str = "", cause: str = "") -> None:
        """Tell the other ranks; after FAILED nothing more is said."""
        if not self._has_ended:
            self._has_ended = kind is Kind.FAILED
            self._send(replace(self._own, kind=kind, phase=phase, cause=cause))

    def give_up(self, phase: str, cause: str) -> None:
        why_not = self._giving_up.agree(phase, cause, self._patience)
        if not why_not:
            return
        if STATUS.alarm is None:
            cause = f"{cause} ({why_not})"
            self.say(Kind.FAILED, phase, cause)
            STATUS.alarm = replace(self._own, kind=Kind.FAILED, phase=phase, cause=cause)
        raise RankFailedError(STATUS.alarm.words)

    def close(self) -> None:
        self._lag.close()
        self._link.close()

    def _hear(self, message: Message) -> None:
        """Called in the listening thread."""
        if message.rank == self._own.rank:
            return
        if message.kind in (Kind.STILL, Kind.WHERE, Kind.HERE):
            self._lag.hear(message)
            return
        with self._news:
            if message.kind in (Kind.GAVE_UP, Kind.AGREED):
                self._giving_up.hear(message)
            else:
                self._hear_end(message)
            self._news.notify_all()

    def _hear_end(self, message: Message) -> None:
        self._known[message.rank] = message
        if message.kind is Kind.LEFT:
            self._left[message.rank] = message
        elif message.kind is Kind.BACK:
            self._left.pop(message.rank, None)
        elif not (message.kind is Kind.DIED and message.rank in self._left):
            self._raise_alarm(message)

    def _raise_alarm(self, message: Message) -> None:
        group = self.group()
        if STATUS.alarm is None and group is not None and group is dist.group.WORLD:
            STATUS.alarm = message
            threading.Thread(target=end_if_stuck, name="dsengine-end", daemon=True).start()

    def reason(self, seconds: float) -> str | None:
        """Wait for the rank that failed first; else name one that has left."""
        with self._news:
            self._news.wait_for(lambda: STATUS.alarm is not None or self._left, seconds)
            if STATUS.alarm is None and self._left:  # its end may be the sequel of another's
                self._news.wait_for(lambda: STATUS.alarm is not None, seconds / 10)
            if STATUS.alarm is not None:
                return STATUS.alarm.words
            return next((each.words for each in self._left.values()), None)


_watch: Watch | None = None


@contextmanager
def taking_part() -> Iterator[None]:
    """Take part in the watch from now on: inside, an engine is built. ``absent`` ends it."""
    watch = _current()
    if watch is not None:
        watch.engines += 1
        if watch.engines == 1:
            STATUS.steps = 0
            watch.say(Kind.BACK)
    try:
        yield
    except BaseException:  # how it goes on, the end of the process will tell
        if watch is not None:
            watch.engines -= 1
        raise


def absent() -> None:
    """Leave the watch when this was the last engine: what happens to this rank is its own."""
    if _watch is not None and _watch.engines:
        _watch.engines -= 1
        if _watch.engines == 0:
            _watch.say(Kind.LEFT)


def failed_rank(seconds: float = EXPLANATION_SECONDS) -> str | None:
    """Return which rank has failed or left, and why; wait so long for the news."""
    return None if _watch is None else _watch.reason(seconds)


def give_up(phase: str, cause: str) -> None:
    """Go on without ``phase``, which ``cause`` has ended, if every rank does. Collective.

    Raises RankFailedError when this is the only rank, or others give up another phase.
    """
    if _current() is not None and _watch is not None:
        _watch.give_up(phase, cause)


def standing_alarm() -> str | None:
    """Return what failed in the group that exists now; forget what failed in an earlier one."""
    if STATUS.alarm is None:
        return None
    group = dist.group.WORLD if dist.is_initialized() else None
    if _watch is None or group is None or _watch.group() is not group:
        STATUS.alarm, STATUS.aborted = None, False
        return None
    return STATUS.alarm.words


def _current() -> Watch | None:
    """The watch of the default group, begun when that group is new; None for a rank alone."""
    global _watch
    group = dist.group.WORLD if dist.is_initialized() else None
    if group is None or group.size() == 1 or "fake" in dist.get_backend_config(group):
        return None
    if _watch is None or _watch.group() is not group:
        if _watch is None:
            _install()
        else:
            _watch.close()
        STATUS.alarm, STATUS.aborted = None, False
        _watch = Watch(group, default_store())
    return _watch


def _published(store: Any, key: str) -> Address | None:
    return Address.from_bytes(store.get(key)) if store.check([key]) else None


def _own_names() -> list[str]:
    """Under which names other hosts may reach this one, the likeliest first."""
    names = [os.environ.get("MASTER_ADDR", ""), socket.gethostname(), socket.getfqdn()]
    return list(dict.fromkeys(name for name in names if name))


def _install() -> None:
    """Have the process tell the others of its end, however Python ends it."""
    previous = sys.excepthook

    def hook(kind: Any, error: BaseException, traceback: Any) -> None:
        previous(kind, error, traceback)
        with suppress(Exception):  # the error itself has been shown; nothing may hide it
            _last_words(error)
        with suppress(Exception):
            _record_for_launcher(error)

    sys.excepthook = hook
    atexit.register(_goodbye)
    if multiprocessing.parent_process() is not None:  # it may end without running atexit
        Finalize(None, _goodbye, exitpriority=100)
    os.register_at_fork(after_in_child=_forget)


def _last_words(error: BaseException) -> None:
    if _watch is None or isinstance(error, RankFailedError):
        return
    reason = _watch.reason(EXPLANATION_SECONDS) if stems_from_communication(error) else None
    if reason is not None and reason in str(error):
        return  # said already
    if reason is not None:
        print(f"dsengine: {reason}", file=sys.stderr, flush=True)
    elif STATUS.alarm is None:
        cause = cause_of(error)
        _watch.say(Kind.FAILED, STATUS.failed_in if STATUS.cause == cause else "", cause)


def _record_for_launcher(error: BaseException) -> None:
    """Leave the error where torchrun looks for it, so that its summary names it."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if path and not os.path.exists(path):  # noqa: PTH110  # no import while the process ends
        from torch.distributed.elastic.multiprocessing.errors import get_error_handler

        try:
            raise error
        except BaseException:  # the handler takes the traceback from the context
            get_error_handler().record_exception(error)  # type: ignore[arg-type]


def _goodbye() -> None:
    """At the end of the process: a failure that something else has caught counts as one."""
    if _watch is None:
        return
    if STATUS.cause and STATUS.alarm is None:
        _watch.say(Kind.FAILED, STATUS.failed_in, STATUS.cause)
    else:
        _watch.say(Kind.LEFT)


def _forget() -> None:
    """In a forked child (a data loader's worker): hold no connection of the parent's open."""
    global _watch
    if _watch is not None:
        _watch._link.forget()
        _watch = None
