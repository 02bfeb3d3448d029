"""Exit of a rank that hangs because another rank failed."""

import os
import sys
import threading
import time

import torch

from dsengine.communication.peers.status import STATUS
from dsengine.communication.peers.stragglers import position_of
from dsengine.stderr import print_error
from dsengine.torch_private.groups import abort_communicators

GRACE_SECONDS = 5.0
"""How long a running phase has to fail by itself after another rank has failed."""
EXIT_CODE = 1


def end_if_stuck() -> None:
    """Wait for the running phase to end; abort its communication, then exit with the reason.

    Outside of a phase the process is not ended: the script may continue without the engine. A
    collective on an accelerator has a timeout of many minutes; aborting the communicators makes it
    return with an error. It is waited for in a phase, or in the script, which reads a loss: so
    communicators are also aborted when the main thread does not move. A wait of gloo ends only with
    the process, and hangs only if a third, healthy rank keeps the connection open.
    """
    on_accelerator = torch.cuda.is_available()
    while _ends_within(GRACE_SECONDS):
        if not on_accelerator or STATUS.failure is None:
            return
        if _stops_for(GRACE_SECONDS):
            break
    if STATUS.failure is None:
        return
    if on_accelerator:
        STATUS.aborted = True  # first: a waiting phase may resume immediately
        _abort_within(GRACE_SECONDS)
        if _ends_within(GRACE_SECONDS):
            return
    reason = STATUS.failure.description
    print_error(f"dsengine: this rank cannot finish {STATUS.description}: {reason}")
    sys.stdout.flush()
    os._exit(EXIT_CODE)


def _abort_within(seconds: float) -> None:
    """Abort the communicators; go on after ``seconds``, because that may hang itself."""
    abort = threading.Thread(target=abort_communicators, name="dsengine-abort", daemon=True)
    abort.start()
    abort.join(seconds)


def _stops_for(seconds: float) -> bool:
    """Whether the main thread stays at one instruction outside of a phase."""
    end, before = time.monotonic() + seconds, _position()
    while time.monotonic() < end:
        time.sleep(0.1)
        if STATUS.phase is not None or _position() != before:
            return False
    return True


def _position() -> tuple[int, int]:
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    return (0, 0) if frame is None else position_of(frame)


def _ends_within(seconds: float) -> bool:
    end = time.monotonic() + seconds
    while STATUS.phase is not None:  # new phases are refused from now on
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True
