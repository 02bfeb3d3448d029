"""Report what the end of a run waits for, and limit the wait.

[Note: end of a process]
After the last line of a script the interpreter joins every thread that is not a daemon (a
checkpoint being written, copies, workers of a loader) and then runs the exit handlers of all
libraries. None of these waits has a limit. A daemon thread waits for the main thread, which counts
as ended before all this, and then reports as ``reported`` does. Once the interpreter stops running
Python threads only the timer of faulthandler, a thread of its own in C, can still end the process.
"""

import faulthandler
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from time import monotonic

from dsengine.communication.peers.stragglers import line_of, patience, position_of
from dsengine.communication.start import default_timeout
from dsengine.stderr import print_error

EXIT_CODE = 1
MARGIN_SECONDS = 90.0
"""How much later than Python's the timer in C ends the process."""
STILL_SECONDS = 60.0
"""How long all threads stay at one instruction if nothing moves."""
_IDLE = "_worker"
"""The function in which an idle thread of a pool waits."""


@cache
def watch_exit() -> None:
    """Report and limit the end of this process; call once a run has started."""
    arguments = (patience(), default_timeout().total_seconds())
    threading.Thread(target=_watch, args=arguments, name="dsengine-exit", daemon=True).start()


@contextmanager
def reported(action: str) -> Iterator[None]:
    """Report what ``action`` waits for; end the process if it takes too long.

    The first report comes after ``DSENGINE_PATIENCE`` seconds, the next after twice as long. After
    ``DEEPSPEED_TIMEOUT`` minutes, the limit of a collective, the process ends with exit code 1
    unless a thread still makes progress.
    """
    done, waiting = threading.Event(), threading.get_ident()
    arguments = (action, done, waiting, patience(), default_timeout().total_seconds())
    threading.Thread(target=_report, args=arguments, name="dsengine-wait", daemon=True).start()
    try:
        yield
    finally:
        done.set()


def _watch(pause: float, limit: float) -> None:
    main = threading.main_thread()
    main.join()

    def arm(seconds: float) -> None:
        with suppress(ValueError, OSError, RuntimeError):  # stderr may not be a file
            file = sys.__stderr__ or sys.stderr
            faulthandler.dump_traceback_later(seconds + MARGIN_SECONDS, exit=True, file=file)

    ended = threading.Event()
    _report("the end of the process", ended, main.ident or 0, pause, limit, arm)


def _report(
    action: str,
    done: threading.Event,
    waiting: int,
    pause: float,
    limit: float,
    extend: Callable[[float], None] = lambda seconds: None,
) -> None:
    """Report until ``done``, first after ``pause`` seconds; ``waiting``: the thread that waits.

    The process ends after ``limit`` seconds unless something moves; then it has ``limit`` more.
    ``extend`` is called with the seconds each time.
    """
    start, waited, end = monotonic(), 0.0, limit
    extend(limit)
    while not done.wait(min(pause, end - waited)):
        is_over = monotonic() - start >= end
        if is_over and _moves(waiting, done, min(STILL_SECONDS, limit / 2)):
            is_over, end = False, monotonic() - start + limit
            extend(limit)
        waited = monotonic() - start
        report = f"{action} has been waiting for {waited:.0f} s: {_activity(waiting)}"
        if is_over:
            report += "; nothing moves, and this is the limit (DEEPSPEED_TIMEOUT in minutes), so "
            report += "the process ends"
        with suppress(OSError, ValueError):  # a closed output must not remove the limit
            print_error(f"dsengine: {report}")
        if is_over:
            with suppress(OSError, ValueError, AttributeError):
                sys.stdout.flush()
            os._exit(EXIT_CODE)
        pause = waited


def _moves(waiting: int, done: threading.Event, seconds: float) -> bool:
    """Whether a thread that is waited for, or the waiting one, gets on within ``seconds``."""
    before = _positions(waiting)
    return done.wait(seconds) or _positions(waiting) != before


def _positions(waiting: int) -> dict[int, tuple[int, int]]:
    threads = {thread.ident for thread in _awaited(waiting)} | {waiting}
    return {
        ident: position_of(frame)
        for ident, frame in sys._current_frames().items()
        if ident in threads
    }


def _awaited(waiting: int) -> list[threading.Thread]:
    """Return the threads that must end before the process, without the waiting one."""
    main = threading.main_thread()
    return [
        thread
        for thread in threading.enumerate()
        if not thread.daemon and thread is not main and thread.ident != waiting
    ]


def _activity(waiting: int) -> str:
    """Return what the other threads are doing; without any, what the waiting thread does."""
    frames = sys._current_frames()
    busy = [
        f"thread {thread.name} at {line_of(frame)}"
        for thread in _awaited(waiting)
        if (frame := frames.get(thread.ident or 0)) is not None
        if frame.f_code.co_name != _IDLE
    ]
    own = frames.get(waiting)
    return "; ".join(busy) or ("an unknown location" if own is None else f"at {line_of(own)}")
