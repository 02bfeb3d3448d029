"""Division of samples, layers and models over ranks, besides the sharding of states."""


def nearest_divisor(number: int, to: int) -> int:
    """Return the divisor of ``number`` next to ``to``; the smaller of two."""
    divisors = (n for n in range(1, number + 1) if number % n == 0)
    return min(divisors, key=lambda n: (abs(n - to), n))
