"""Signal handling of ``dsconfig run``: stopping it stops the launcher and all ranks.

[Note: signal forwarding] Ranks have sessions of their own, so a signal to this process or to the
terminal's process group does not reach them. The first signal is forwarded to the launcher, which
forwards it to the ranks, waits ``--grace`` seconds and kills the remaining ones; a second signal
kills the launcher. Ranks whose launcher has died become children of this process, which kills them
on exit. If this process is killed, the kernel signals ``dsengine.torchrun_launcher``.
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
"""Environment variable of torchrun: seconds that ranks have to exit after a signal."""
_BE_REAPER = 36
"""``PR_SET_CHILD_SUBREAPER`` of prctl(2)."""


@contextmanager
def forwarding_signals(job: "subprocess.Popen[bytes]") -> Generator[list[signal.Signals]]:
    """Forward termination signals to the launcher; yield the list of received ones."""
    received: list[signal.Signals] = []

    def forward(number: int, _: object) -> None:
        received.append(signal.Signals(number))
        if job.poll() is None:
            job.send_signal(signal.SIGKILL if received[1:] else received[0])

    numbers = [getattr(signal, name) for name in ENDING if hasattr(signal, name)]
    # Ignored signals stay ignored: nohup does that to SIGHUP.
    numbers = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    previous = {number: signal.signal(number, forward) for number in numbers}
    try:
        yield received
    finally:
        if job.poll() is None:  # left by an exception
            job.terminate()
            job.wait()
        while orphans := launch_env.child_processes():  # adopted when their launcher died
            for orphan in orphans:
                os.kill(orphan, signal.SIGKILL)
                os.waitpid(orphan, 0)
        for number, handler in previous.items():
            signal.signal(number, handler)


def adopt_orphans() -> None:
    """Become the parent of ranks whose launcher dies (Linux only)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_BE_REAPER, 1, 0, 0, 0)


def exit_code(code: int, received: list[signal.Signals]) -> int:
    """Return the exit code of the job, or 128 + the number of the signal."""
    if received:
        return 128 + received[0]
    return code if code >= 0 else 128 - code
