"""Every way to end ``dsconfig run`` ends all of it.

[Note: who ends whom] Ranks have sessions of their own, so a signal to this process, or to the
terminal's group, reaches none of them. The first signal goes on to the launcher, which gives it to
the ranks, waits as long as they have (``--grace``) and kills what is left; a second one kills the
launcher. Ranks that have lost their launcher, however that ended, become children of this process,
which kills them when it ends. When this process itself is killed, the kernel tells the launcher
(``dsengine.torchrun_launcher``).
"""

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager

from dsconfig import launch_env

ENDING = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT")
GRACE = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"
"""Where torchrun reads how many seconds ranks have after a signal."""
_BE_REAPER = 36
"""``PR_SET_CHILD_SUBREAPER`` of prctl(2)."""


@contextmanager
def passing_on(job: "subprocess.Popen[bytes]") -> Generator[list[signal.Signals]]:
    """Give the launcher what is to end this process; yield what has come so far."""
    received: list[signal.Signals] = []

    def pass_on(number: int, _: object) -> None:
        received.append(signal.Signals(number))
        if job.poll() is None:
            job.send_signal(signal.SIGKILL if received[1:] else received[0])

    caught = [getattr(signal, name) for name in ENDING if hasattr(signal, name)]
    # What was to be ignored stays so: nohup does it with SIGHUP.
    caught = [each for each in caught if signal.getsignal(each) is not signal.SIG_IGN]
    before = {each: signal.signal(each, pass_on) for each in caught}
    try:
        yield received
    finally:
        if job.poll() is None:  # it was left, not ended
            job.terminate()
            job.wait()
        while (
            orphans := launch_env.child_processes()
        ):  # a rank is adopted when its launcher has gone
            for orphan in orphans:
                os.kill(orphan, signal.SIGKILL)
                os.waitpid(orphan, 0)
        for each, handler in before.items():
            signal.signal(each, handler)


def adopt_orphans() -> None:
    """Become the parent of ranks that lose their launcher, where the system offers it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_BE_REAPER, 1, 0, 0, 0)


def exit_code(code: int, received: list[signal.Signals]) -> int:
    """That of the job, or what shells and schedulers know a signal by."""
    if received:
        return 128 + received[0]
    return code if code >= 0 else 128 - code
