"""Loading modules without collecting garbage meanwhile."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """No collections of garbage inside: what modules make while they load stays.

    Each would go through all that torch has made, 0.3 s of the start of a process (measured).
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if not gc.get_freeze_count():
            # All that has been made goes to the oldest generation, unseen: the next collections
            # look at what comes after it.
            gc.freeze()
            gc.unfreeze()
        if was_enabled:
            gc.enable()
