"""Formatting of sizes and counts: GiB as in nvidia-smi and torch, GB as in data sheets."""

KIB, MIB, GIB = 2**10, 2**20, 2**30


def counted(number: int, noun: str) -> str:
    """Return ``1 rank`` or ``8 ranks``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def in_gib(count: float, digits: int = 2) -> str:
    """Return ``8.38``, for a column with the unit in its heading."""
    return f"{count / GIB:.{digits}f}"


def gib(count: float, digits: int = 1) -> str:
    """Return ``61.2 GiB``."""
    return f"{in_gib(count, digits)} GiB"


def size(count: float, digits: int = 1) -> str:
    """Return ``61.2 GiB``, or a smaller unit such as ``312 MiB``."""
    if abs(count) >= GIB:
        return gib(count, digits)
    if not count or abs(count) >= MIB:
        return f"{count / MIB:.0f} MiB"
    return f"{count / KIB:.0f} KiB" if abs(count) >= KIB else f"{count:.0f} bytes"


def both(count: float) -> str:
    """Return decimal and binary size: ``9.00 GB (8.38 GiB)``; ``-`` for zero."""
    return f"{count / 1e9:.2f} GB ({gib(count, 2)})" if count else "-"
