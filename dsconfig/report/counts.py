"""Numbers of things as people read them."""


def counted(number: int, noun: str) -> str:
    """``1 rank``, ``8 ranks``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
