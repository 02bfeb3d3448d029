"""Exit of a rank that hangs because another rank failed."""

import os
import sys
import time

import torch

from dsengine.communication.peers.status import STATUS
from dsengine.torch_private import abort_communicators

GRACE_SECONDS = 5.0
"""How long a running phase has to fail by itself after another rank has failed."""
EXIT_CODE = 1


def end_if_stuck() -> None:
    """Wait for the running phase to end; abort its communication, then exit with the reason.

    Outside of a phase nothing is done: the script may continue without the engine. A collective on
    an accelerator has a timeout of many minutes; aborting the communicators makes it return with
    an error. A wait of gloo ends only with the process, and hangs only if a third, healthy rank
    keeps the connection open.
    """
    if _ends_within(GRACE_SECONDS) or STATUS.failure is None:
        return
    if torch.cuda.is_available():
        STATUS.aborted = True  # first: a waiting phase may resume immediately
        abort_communicators()
        if _ends_within(GRACE_SECONDS):
            return
    reason = STATUS.failure.description
    message = f"dsengine: this rank cannot finish {STATUS.description}: {reason}"
    print(message, file=sys.stderr, flush=True)
    sys.stdout.flush()
    os._exit(EXIT_CODE)


def _ends_within(seconds: float) -> bool:
    end = time.monotonic() + seconds
    while STATUS.phase is not None:  # new phases are refused from now on
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True
