"""The end of a rank that hangs because another one is gone."""

import os
import sys
import time

import torch

from dsengine.communication.peers.status import STATUS
from dsengine.torch_private import abort_communicators

GRACE_SECONDS = 5.0
"""What the phase that runs when a rank fails has left to notice by itself."""
EXIT_CODE = 1


def end_if_stuck() -> None:
    """Wait for the running phase to end; help it, then end the process, with the reason.

    Outside of a phase nothing is done: what a script does without the engine may well go on. A
    collective on an accelerator waits for its peers until a timeout of many minutes; aborting
    the communicators makes it return with an error. Gloo's wait can be ended only with the
    process, and needs that only where a third rank, itself well, holds the connection open.
    """
    if _ends_within(GRACE_SECONDS) or STATUS.alarm is None:
        return
    if torch.cuda.is_available():
        STATUS.aborted = True  # first: a phase that waits may go on at once
        abort_communicators()
        if _ends_within(GRACE_SECONDS):
            return
    words = f"dsengine: this rank cannot finish {STATUS.words}: {STATUS.alarm.words}"
    print(words, file=sys.stderr, flush=True)
    sys.stdout.flush()
    os._exit(EXIT_CODE)


def _ends_within(seconds: float) -> bool:
    end = time.monotonic() + seconds
    while STATUS.phase is not None:  # a phase that begins from now on is refused
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True
