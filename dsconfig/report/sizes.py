"""Numbers as people read them: bytes in GiB, as nvidia-smi and torch print, in GB where data sheets
do; things with their noun.
"""

KIB, MIB, GIB = 2**10, 2**20, 2**30


def counted(number: int, noun: str) -> str:
    """``1 rank``, ``8 ranks``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def in_gib(count: float, digits: int = 2) -> str:
    """``8.38``: the unit stands beside it, or at the head of a column."""
    return f"{count / GIB:.{digits}f}"


def gib(count: float, digits: int = 1) -> str:
    """``61.2 GiB``."""
    return f"{in_gib(count, digits)} GiB"


def size(count: float, digits: int = 1) -> str:
    """``61.2 GiB``, or ``312 MiB`` below one of it; ``8 bytes`` is not nothing."""
    if abs(count) >= GIB:
        return gib(count, digits)
    if not count or abs(count) >= MIB:
        return f"{count / MIB:.0f} MiB"
    return f"{count / KIB:.0f} KiB" if abs(count) >= KIB else f"{count:.0f} bytes"


def both(count: float) -> str:
    """Decimal and binary side by side: ``9.00 GB (8.38 GiB)``; ``-`` for nothing."""
    return f"{count / 1e9:.2f} GB ({gib(count, 2)})" if count else "-"
