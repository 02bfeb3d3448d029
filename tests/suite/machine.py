"""One group of ranks at a time on a machine."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import gettempdir


@contextmanager
def machine_for_ranks() -> Iterator[None]:
    """Wait until no other test process runs ranks; those that wait continue in order."""
    path = Path(gettempdir()) / f"dsconfig-ranks-{os.getuid()}.lock"
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
