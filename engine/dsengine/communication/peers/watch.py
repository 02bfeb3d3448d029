"""This process's side of failure detection: state changes it sends and receives."""

import atexit
import multiprocessing
import os
import socket
import sys
import threading
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from multiprocessing.util import Finalize
from typing import Any

import torch.distributed as dist

from dsengine.communication.peers.abort import end_if_stuck
from dsengine.communication.peers.abort_agreement import AbortAgreement
from dsengine.communication.peers.errors import RankFailedError, stems_from_communication
from dsengine.communication.peers.links import Address, Client, Server
from dsengine.communication.peers.message import Message, MessageKind, cause_of
from dsengine.communication.peers.status import STATUS
from dsengine.communication.peers.stragglers import StragglerDetector, patience
from dsengine.stderr import print_error
from dsengine.torch_private.groups import default_store

EXPLANATION_SECONDS = 3.0
"""How long a communication error waits for a message about the rank that caused it."""
KEY = "dsengine/peers"


class Watch:
    """Failure detection among the ranks of one default process group."""

    _count = 0

    def __init__(self, group: Any, store: Any) -> None:
        self._patience = patience()
        Watch._count += 1
        self.group = weakref.ref(group)
        self.engines = 0
        """Engines of this process that are in use or being built."""
        self.built = 0
        """All engines that were begun. Ranks begin each together, so this dates a message."""
        self._states: dict[int, Message] = {}
        """By rank, its last state change."""
        self._left: dict[int, Message] = {}
        self._news = threading.Condition()
        self._has_failed = False
        self._own = Message(group.rank(), socket.gethostname(), os.getpid(), MessageKind.JOINED)
        self._agreement = AbortAgreement(self._own, group.size(), self._send, self._news)
        self._stragglers = StragglerDetector(
            self._own, self._states, group.size(), self._patience, self._send
        )
        self._stragglers.start()
        key = f"{KEY}/{Watch._count}"
        if self._own.rank == 0:
            self._link: Server | Client = Server(self._own, _host_names(), self._on_message)
            store.set(key, self._link.address.to_bytes())
        else:
            self._link = Client(self._own, lambda: _published(store, key), self._on_message)

    def _send(self, message: Message) -> None:
        self._link.send(message)

    def report(self, kind: MessageKind, phase: str = "", cause: str = "") -> None:
        """Send a state change to the other ranks; after FAILED nothing more is sent."""
        if not self._has_failed:
            self._has_failed = kind is MessageKind.FAILED
            message = replace(self._own, kind=kind, phase=phase, cause=cause)
            self._send(replace(message, progress=STATUS.reached, engines=self.built))

    def agree_to_abort(self, phase: str, cause: str, issued: Mapping[str, int]) -> None:
        refusal = self._agreement.agree(phase, cause, issued, self._patience)
        if not refusal:
            return
        if STATUS.failure is None:
            kind, cause = MessageKind.FAILED, f"{cause} ({refusal})"
            self.report(kind, phase, cause)
            STATUS.failure = replace(self._own, kind=kind, phase=phase, cause=cause)
        raise RankFailedError(STATUS.failure.description)

    def close(self) -> None:
        self._stragglers.close()
        self._link.close()

    def _on_message(self, message: Message) -> None:
        """Process a message in the receiving thread."""
        if message.rank == self._own.rank:
            return
        if message.kind in (MessageKind.WAITING, MessageKind.STATUS_REQUEST, MessageKind.STATUS):
            self._stragglers.on_message(message)
            return
        with self._news:
            if message.kind in (MessageKind.ABORT_REQUEST, MessageKind.ABORT_REPLY):
                self._agreement.on_message(message)
            else:
                self._on_state_change(message)
            self._news.notify_all()

    def _on_state_change(self, message: Message) -> None:
        self._states[message.rank] = message
        if message.kind is MessageKind.LEFT:
            self._left[message.rank] = message
            if STATUS.needs_all and self._is_behind(message, STATUS.progress):
                self._on_failure(message)
        elif message.kind is MessageKind.JOINED:
            if STATUS.failure is self._left.pop(message.rank, None):
                STATUS.failure = None
        elif not (message.kind is MessageKind.DIED and message.rank in self._left):
            self._on_failure(message)

    def _on_failure(self, message: Message) -> None:
        group = self.group()
        if STATUS.failure is None and group is not None and group is dist.group.WORLD:
            STATUS.failure = message
            threading.Thread(target=end_if_stuck, name="dsengine-end", daemon=True).start()

    def departure(self, progress: float) -> str | None:
        left = (each for each in [*self._left.values()] if self._is_behind(each, progress))
        return next((each.description for each in left), None)

    def _is_behind(self, left: Message, progress: float) -> bool:
        """Return whether a rank left before it reached ``progress`` of this rank's engine.

        A collective may arrive before the message that the rank has joined again.
        """
        return left.engines >= self.built and left.progress < progress

    def failure_reason(self, seconds: float) -> str | None:
        """Wait for the first failure and describe it; otherwise a rank that has left."""
        with self._news:
            self._news.wait_for(lambda: STATUS.failure is not None or self._left, seconds)
            if STATUS.failure is None and self._left:  # it may have ended because of a failure
                self._news.wait_for(lambda: STATUS.failure is not None, seconds / 10)
            if STATUS.failure is not None:
                return STATUS.failure.description
            return next((message.description for message in self._left.values()), None)


_watch: Watch | None = None


@contextmanager
def registered() -> Iterator[None]:
    """Register an engine that is built inside; ``unregister`` ends it."""
    watch = _current()
    if watch is not None:
        watch.engines += 1
        watch.built += 1
        if watch.engines == 1:
            STATUS.steps, STATUS.reached = 0, 0.0
            watch.report(MessageKind.JOINED)
    try:
        yield
    except BaseException:  # reported when the process ends, if it does
        if watch is not None:
            watch.engines -= 1
        raise


def unregister() -> None:
    """Unregister an engine; after the last one, the exit of this rank is not a failure."""
    if _watch is not None and _watch.engines:
        _watch.engines -= 1
        if _watch.engines == 0:
            _watch.report(MessageKind.LEFT)


def failure_reason(seconds: float = EXPLANATION_SECONDS) -> str | None:
    """Return which rank failed or left, and why; wait up to ``seconds`` for the message."""
    return None if _watch is None else _watch.failure_reason(seconds)


def departure(progress: float) -> str | None:
    """Describe a rank that closed its last engine before it reached ``progress``."""
    return None if _watch is None or not _watch.engines else _watch.departure(progress)


def agree_to_abort(phase: str, cause: str, issued: Mapping[str, int]) -> None:
    """Continue without ``phase``, which raised ``cause``, if every rank does. Collective.

    ``issued``: how many collectives the phase has issued, by group. Raises RankFailedError when
    only this rank does, when others abort another phase, or when they have issued other numbers of
    collectives.
    """
    if _current() is not None and _watch is not None:
        _watch.agree_to_abort(phase, cause, issued)


def current_failure() -> str | None:
    """Describe the failure in the current group; clear that of an earlier group."""
    if STATUS.failure is None:
        return None
    group = dist.group.WORLD if dist.is_initialized() else None
    if _watch is None or group is None or _watch.group() is not group:
        STATUS.failure, STATUS.aborted = None, False
        return None
    return STATUS.failure.description


def _current() -> Watch | None:
    """Return the watch of the default group, started if that is new; None for a single rank."""
    global _watch
    group = dist.group.WORLD if dist.is_initialized() else None
    if group is None or group.size() == 1 or "fake" in dist.get_backend_config(group):
        return None
    if _watch is None or _watch.group() is not group:
        if _watch is None:
            _install()
        else:
            _watch.close()
        STATUS.failure, STATUS.aborted = None, False
        _watch = Watch(group, default_store())
    return _watch


def _published(store: Any, key: str) -> Address | None:
    return Address.from_bytes(store.get(key)) if store.check([key]) else None


def _host_names() -> list[str]:
    """Return names under which other hosts may reach this one, the likeliest first."""
    names = [os.environ.get("MASTER_ADDR", ""), socket.gethostname(), socket.getfqdn()]
    return list(dict.fromkeys(name for name in names if name))


def _install() -> None:
    """Install hooks that report the end of this process, however Python ends it."""
    previous = sys.excepthook

    def hook(kind: Any, error: BaseException, traceback: Any) -> None:
        previous(kind, error, traceback)
        with suppress(Exception):  # the error itself has been printed; nothing may hide it
            _report_exception(error)
        with suppress(Exception):
            _record_for_launcher(error)

    sys.excepthook = hook
    atexit.register(_report_exit)
    if multiprocessing.parent_process() is not None:  # may end without running atexit
        Finalize(None, _report_exit, exitpriority=100)
    os.register_at_fork(after_in_child=_reset_after_fork)


def _report_exception(error: BaseException) -> None:
    if _watch is None or isinstance(error, RankFailedError):
        return
    communication = stems_from_communication(error)
    reason = _watch.failure_reason(EXPLANATION_SECONDS) if communication else None
    if reason is not None and reason in str(error):
        return  # already part of the error
    if reason is not None:
        print_error(f"dsengine: {reason}")
    elif STATUS.failure is None:
        cause = cause_of(error)
        _watch.report(MessageKind.FAILED, STATUS.failed_in if STATUS.cause == cause else "", cause)


def _record_for_launcher(error: BaseException) -> None:
    """Write the error where torchrun looks for it, so that its summary shows it."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if path and not os.path.exists(path):  # noqa: PTH110  # no import while the process ends
        from torch.distributed.elastic.multiprocessing.errors import get_error_handler

        try:
            raise error
        except BaseException:  # the handler takes the traceback from the context
            get_error_handler().record_exception(error)  # type: ignore[arg-type]


def _report_exit() -> None:
    """Report the normal end of the process; an error that was caught elsewhere is a failure."""
    if _watch is None:
        return
    if STATUS.cause and STATUS.failure is None:
        _watch.report(MessageKind.FAILED, STATUS.failed_in, STATUS.cause)
    else:
        _watch.report(MessageKind.LEFT)


def _reset_after_fork() -> None:
    """Close the parent's connections in a forked child, such as a data loader worker."""
    global _watch
    if _watch is not None:
        _watch._link.close_after_fork()
        _watch = None
