"""Division of consecutive layers into parts."""

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import Any


def prefix_sum_inc(weights: Iterable[float]) -> list[Any]:
    """Return the inclusive prefix sums of ``weights``."""
    return list(accumulate(weights))


def partition_uniform(num_items: int, num_parts: int) -> list[int]:
    """Return the boundaries of equal parts of ``num_items``; the first parts may be larger by one.

    With more parts than items the last parts are empty.
    """
    size, remainder = divmod(num_items, num_parts)
    return [index * size + min(index, remainder) for index in range(num_parts + 1)]


def partition_balanced(weights: Sequence[float], num_parts: int) -> list[int]:
    """Return the boundaries of balanced parts of consecutive ``weights``.

    Minimizes the heaviest part, then maximizes the lightest; of equal ones the first parts have
    more. Distributes layers of different size
    over stages or processes.
    """
    count = len(weights)
    if count <= num_parts:
        return partition_uniform(count, num_parts)
    sums = [0, *accumulate(weights)]
    heaviest = _best_cuts(sums, num_parts, lambda *pair: -max(-pair[0], pair[1]), start=0)[0]
    limit = -heaviest

    def lightest(before: float, part: float) -> float:
        return min(before, part) if part <= limit else -math.inf

    return _best_cuts(sums, num_parts, lightest, start=math.inf)[1]


def _best_cuts(
    sums: Sequence[float],
    num_parts: int,
    join: Callable[[float, float], float],
    start: float,
) -> tuple[float, list[int]]:
    """Return the best value and boundaries; ``join`` extends the value of some parts by one."""
    best: dict[int, tuple[float, list[int]]] = {0: (start, [0])}
    for part in range(1, num_parts + 1):
        best = {
            end: max(
                (
                    (join(value, sums[end] - sums[begin]), [*cuts, end])
                    for begin, (value, cuts) in best.items()
                    if begin < end
                ),
                key=lambda candidate: (candidate[0], candidate[1][-2]),
            )
            for end in range(part, len(sums) - num_parts + part)
        }
    return best[len(sums) - 1]
