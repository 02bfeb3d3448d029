"""DeepSpeed compiles kernels when it first needs them, for minutes: say so while all wait."""

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LONGEST = 1800.0
"""Seconds for a run in which kernels may be compiled: once for a machine and a release."""
EVERY = 20.0
"""Seconds between two lines."""


@contextmanager
def saying_what_compiles(every: float = EVERY) -> Iterator[None]:
    """Tell on stderr, now and then, which kernels are being compiled while the block runs."""
    ended, began = threading.Event(), time.time()

    def tell() -> None:
        while not ended.wait(every):
            for line in lines(began):
                print(line, file=sys.stderr, flush=True)

    thread = threading.Thread(target=tell, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def lines(began: float) -> list[str]:
    """One for each kernel with a lock: torch keeps it while it compiles, and a killed process for
    ever, for which every later one would wait. ``began``: seconds since the epoch."""
    told = []
    for lock in sorted(extensions().glob("**/lock")):
        since = lock.stat().st_mtime
        kernel, age = lock.parent.name, time.time() - since
        line = f"DeepSpeed is compiling {kernel}: minutes, on the first run ({age:.0f} s so far)"
        if since < began:
            line = f"waiting for {kernel}: if no process is compiling it, delete {lock}"
        told.append(line)
    return told


def extensions() -> Path:
    """Where torch builds and keeps what it compiles."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("TORCH_EXTENSIONS_DIR") or Path(cache) / "torch_extensions")
