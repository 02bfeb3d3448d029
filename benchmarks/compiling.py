"""Report kernels that DeepSpeed compiles on first use, which takes minutes."""

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LONGEST = 1800.0
"""Timeout in seconds of a run that may compile kernels."""
EVERY = 20.0
"""Seconds between two messages."""


@contextmanager
def report_compilation(every: float = EVERY) -> Iterator[None]:
    """Print to stderr which kernels are being compiled while the block runs."""
    ended, began = threading.Event(), time.time()

    def report() -> None:
        while not ended.wait(every):
            for line in lines(began):
                print(line, file=sys.stderr, flush=True)

    thread = threading.Thread(target=report, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def lines(began: float) -> list[str]:
    """Return a message for each kernel with a lock file, which torch keeps while it compiles.

    The lock of a killed process remains and blocks later ones. ``began``: seconds since the epoch.
    """
    messages = []
    for lock in sorted(extensions().glob("**/lock")):
        since = lock.stat().st_mtime
        kernel, age = lock.parent.name, time.time() - since
        line = f"DeepSpeed is compiling {kernel}: minutes, on the first run ({age:.0f} s so far)"
        if since < began:
            line = f"waiting for {kernel}: if no process is compiling it, delete {lock}"
        messages.append(line)
    return messages


def extensions() -> Path:
    """Return the folder in which torch builds extensions."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("TORCH_EXTENSIONS_DIR") or Path(cache) / "torch_extensions")
