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
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from time import monotonic

from dsengine.communication.peers.stragglers import line_of, patience
from dsengine.communication.start import default_timeout

EXIT_CODE = 1
_MARGIN_SECONDS = 5.0
"""How much later than Python's the timer in C ends the process."""
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

    The first report comes after ``DSENGINE_PATIENCE`` seconds, the next after twice as long. The
    process ends with exit code 1 after ``DEEPSPEED_TIMEOUT`` minutes, the limit of a collective.
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
    with suppress(ValueError, OSError, RuntimeError):  # stderr may not be a file
        file = sys.__stderr__ or sys.stderr
        faulthandler.dump_traceback_later(limit + _MARGIN_SECONDS, exit=True, file=file)
    _report("the end of the process", threading.Event(), main.ident or 0, pause, limit)


def _report(action: str, done: threading.Event, waiting: int, pause: float, limit: float) -> None:
    """Report until ``done``, first after ``pause`` seconds; ``waiting``: the thread that waits."""
    start, waited = monotonic(), 0.0
    while not done.wait(min(pause, limit - waited)):
        waited = monotonic() - start
        is_over = waited >= limit
        report = f"{action} has been waiting for {waited:.0f} s: {_activity(waiting)}"
        if is_over:
            report += "; this is the limit (DEEPSPEED_TIMEOUT in minutes), so the process ends"
        with suppress(OSError, ValueError):  # a closed output must not remove the limit
            print(f"dsengine: {report}", file=sys.stderr, flush=True)
        if is_over:
            with suppress(OSError, ValueError, AttributeError):
                sys.stdout.flush()
            os._exit(EXIT_CODE)
        pause = waited


def _activity(waiting: int) -> str:
    """Return what the other threads are doing; without any, what the waiting thread does."""
    frames = sys._current_frames()
    busy = [
        f"thread {thread.name} at {line_of(frame)}"
        for thread in threading.enumerate()
        if not thread.daemon and thread is not threading.main_thread() and thread.ident != waiting
        if (frame := frames.get(thread.ident or 0)) is not None
        if frame.f_code.co_name != _IDLE
    ]
    own = frames.get(waiting)
    return "; ".join(busy) or ("an unknown location" if own is None else f"at {line_of(own)}")
