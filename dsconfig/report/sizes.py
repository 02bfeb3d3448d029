"""Bytes as people read them: GiB, as nvidia-smi and torch print, and GB where data sheets do."""

KIB, MIB, GIB = 2**10, 2**20, 2**30


def in_gib(count: float, digits: int = 2) -> str:
    """``8.38``: the unit stands beside it, or at the head of a column."""
    return f"{count / GIB:.{digits}f}"


def gib(count: float, digits: int = 1) -> str:
    """``61.2 GiB``."""
    return f"{in_gib(count, digits)} GiB"


def size(count: float, digits: int = 1) -> str:
    """``61.2 GiB``, or ``312 MiB`` below one of it."""
    return gib(count, digits) if abs(count) >= GIB else f"{count / MIB:.0f} MiB"


def both(count: float) -> str:
    """Decimal and binary side by side: ``9.00 GB (8.38 GiB)``; ``-`` for nothing."""
    return f"{count / 1e9:.2f} GB ({gib(count, 2)})" if count else "-"
