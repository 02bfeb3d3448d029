"""Signals of the launcher to a rank, addressed to the main threads of its processes.

[Note: signals and threads] Python runs signal handlers in the main thread, but the kernel may
deliver a signal for a process to any thread, such as one of gloo's. A main thread in ``time.sleep``
or another system call is then not interrupted and never handles the signal.
"""

import ctypes
import os
import signal
from typing import Any

from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler

from dsconfig import launch_env


def address_main_threads() -> None:
    """Make torchrun in this process send its signals to main threads, where Linux allows it."""
    libc = ctypes.CDLL(None)
    close = SubprocessHandler.close
    if not hasattr(libc, "tgkill"):  # not Linux, or glibc before 2.30
        return

    def close_main_threads(self: Any, death_sig: signal.Signals | None = None) -> None:
        number = death_sig or signal.SIGTERM
        for process in _group(self.proc.pid):
            libc.tgkill(process, process, int(number))
        # Nothing is left to send; SIGCONT lets a stopped rank handle the signal.
        close(self, signal.SIGCONT)

    SubprocessHandler.close = close_main_threads


def _group(leader: int) -> list[int]:
    """Return the running processes of a process group."""
    found: list[int] = []
    for process in launch_env.parents():
        try:
            if os.getpgid(process) == leader:
                found.append(process)
        except OSError:  # it has exited
            continue
    return found
