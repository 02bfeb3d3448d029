"""Let gloo's threads finish before the interpreter exits.

[Note: gloo threads at interpreter exit]
A wait for a collective returns before gloo's thread has released its tensors. If that thread holds
the last reference to a tensor that Python has seen, it needs the GIL to free it. An interpreter
that is exiting terminates every thread that requests the GIL; inside a C++ destructor this aborts
the process (SIGABRT, "terminate called without an active exception") after a successful run. So at
exit the main thread releases the GIL until no gloo thread has work left.
"""

import atexit
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

from dsengine.torch_private.groups import GLOO_THREAD

TIMEOUT_SECONDS = 10.0
_POLL_SECONDS = 0.002
_BUSY_STATES = {"R", "D"}  # running, or uninterruptible in the kernel
_THREADS = Path("/proc/self/task")


@cache
def wait_for_gloo_at_exit() -> None:
    """Register an exit handler that waits for gloo's threads."""
    atexit.register(wait_for_gloo)


def wait_for_gloo() -> None:
    """Wait until gloo's threads are idle in two consecutive checks.

    One check is not enough: a thread may be waiting for the GIL that the check itself holds. A
    thread that waits for another rank counts as idle.
    """
    deadline = time.monotonic() + TIMEOUT_SECONDS
    idle_checks = 0
    while idle_checks < 2 and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
        idle_checks = 0 if _BUSY_STATES & set(_states()) else idle_checks + 1


def _states() -> Iterator[str]:
    """Yield the state letter of each gloo thread (proc_pid_stat(5)); nothing without /proc."""
    with suppress(OSError):
        for thread in _THREADS.iterdir():
            with suppress(OSError):  # it has just ended
                name, _, rest = (thread / "stat").read_text().partition("(")[2].rpartition(") ")
                if name == GLOO_THREAD:
                    yield rest[0]
