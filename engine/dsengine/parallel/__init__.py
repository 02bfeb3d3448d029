"""Division of samples, layers and models over ranks, besides the sharding of states."""

from collections.abc import Callable


def nearest_degree(
    degree: int, ranks: int, is_valid: Callable[[int], bool] = lambda n: True
) -> int:
    """Return the valid divisor of ``ranks`` next to ``degree``; the smaller of two, else 1."""
    divisors = (n for n in range(2, ranks + 1) if ranks % n == 0 and is_valid(n))
    return min(divisors, key=lambda n: (abs(n - degree), n), default=1)
