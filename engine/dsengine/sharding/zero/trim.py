"""Giving freed memory back to the system."""

import ctypes
from collections.abc import Callable
from functools import cache

TRIM_BYTES = 16 * 2**20


@cache
def _malloc_trim() -> Callable[[int], int] | None:
    try:
        return ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):  # not glibc
        return None


class Trimmer:
    """Lets the allocator return what was freed, every ``TRIM_BYTES``.

    glibc keeps freed blocks for later; the small pieces that stay of large parameters lie
    between them and would keep a whole model's worth of memory from being returned.
    """

    def __init__(self) -> None:
        self._freed = 0

    def freed(self, size: int) -> None:
        """Take note of ``size`` freed bytes."""
        self._freed += size
        if self._freed >= TRIM_BYTES:
            self.trim()

    def trim(self) -> None:
        trim = _malloc_trim()
        if trim is not None:
            trim(0)
        self._freed = 0
