"""The end of a process: what gloo's threads still hold is dropped while Python can drop it.

[Note: a thread that outlives the interpreter]
Who waits for a collective goes on before gloo's thread has let go of its tensors. Where that
thread is the last to hold one that Python has seen, it needs the interpreter to drop it. An
interpreter that is ending ends every thread that asks for it, and inside a destructor of C++ that
ends the whole process: SIGABRT, "terminate called without an active exception", after a script that
has done everything right. So at the end the main thread lets go of the interpreter until no thread
of gloo's has anything left to do.
"""

import atexit
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

from dsengine.torch_private import GLOO_THREAD

LONGEST_SECONDS = 10.0
_BETWEEN_LOOKS = 0.002
_AT_WORK = {"R", "D"}  # running or about to, in the kernel's hands
_THREADS = Path("/proc/self/task")


@cache
def end_in_order() -> None:
    """Have this process, however Python ends it, let gloo's threads finish first."""
    atexit.register(let_threads_finish)


def let_threads_finish() -> None:
    """Wait until gloo's threads rest in two looks in a row; one that waits for a rank rests.

    One look is not enough: the thread may wait for the interpreter that the look itself holds.
    """
    end = time.monotonic() + LONGEST_SECONDS
    at_rest = 0
    while at_rest < 2 and time.monotonic() < end:
        time.sleep(_BETWEEN_LOOKS)
        at_rest = 0 if _AT_WORK & set(_states()) else at_rest + 1


def _states() -> Iterator[str]:
    """What gloo's threads do, a letter each (proc_pid_stat(5)); nothing where it cannot be seen."""
    with suppress(OSError):
        for thread in _THREADS.iterdir():
            with suppress(OSError):  # it has ended meanwhile
                name, _, rest = (thread / "stat").read_text().partition("(")[2].rpartition(") ")
                if name == GLOO_THREAD:
                    yield rest[0]
