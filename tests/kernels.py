"""Where DeepSpeed's kernels are built for the tests."""

import time
from pathlib import Path

_LONGEST_BUILD = 1800.0
"""Seconds."""


def built_here() -> Path:
    """Return a folder of this checkout in which no lock of a dead build lies.

    torch waits without end for the lock of a build that was cut off, in whatever run that was.
    """
    folder = Path(__file__).parents[1] / "runs" / "extensions"
    for lock in folder.glob("*/lock"):
        if time.time() - lock.stat().st_mtime > _LONGEST_BUILD:
            lock.unlink(missing_ok=True)
    return folder
