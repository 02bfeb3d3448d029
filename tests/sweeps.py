"""Tests over the product of several parameters, of which the suite runs a covering subset."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, product
from typing import Any

import pytest

Axis = Sequence[Any] | Mapping[str, Any]
"""Values of a parameter, or values by the name that the test's id shows."""


def sweep(strength: int, /, **axes: Axis) -> pytest.MarkDecorator:
    """Parametrize a test with every combination of the values of ``axes``.

    `make test` runs a subset in which any values of any ``strength`` parameters meet at least once:
    1 runs each value, 2 each pair of values. The other combinations are marked ``long``.
    """
    values = [[*axis.values()] if isinstance(axis, Mapping) else [*axis] for axis in axes.values()]
    names = [[*map(str, axis)] for axis in axes.values()]
    kept = {*covering([len(axis) for axis in values], strength)}
    rows = [
        pytest.param(
            *(axis[at] for axis, at in zip(values, row, strict=True)),
            id="-".join(axis[at] for axis, at in zip(names, row, strict=True)),
            marks=() if row in kept else (pytest.mark.long,),
        )
        for row in product(*(range(len(axis)) for axis in values))
    ]
    return pytest.mark.parametrize([*axes], rows)


def covering(sizes: Sequence[int], strength: int) -> list[tuple[int, ...]]:
    """Return few combinations of indices, at most ``sizes``, in which any indices of any
    ``strength`` positions meet.

    Each is the first one with the most new meetings. If the subset is not larger, the indices of
    each position are used about equally often.
    """
    strength = min(strength, len(sizes))
    return min((_greedy(sizes, strength, even) for even in (True, False)), key=len)


def _greedy(sizes: Sequence[int], strength: int, even: bool) -> list[tuple[int, ...]]:
    rows = [*product(*map(range, sizes))]
    missing = {meeting for row in rows for meeting in _meetings(row, strength)}
    uses: Counter[tuple[int, int]] = Counter()
    chosen: list[tuple[int, ...]] = []

    def worth(row: tuple[int, ...]) -> tuple[int, int]:
        new = len(missing.intersection(_meetings(row, strength)))
        return new, -sum(uses[index] for index in enumerate(row)) if even else 0

    while missing:
        best = max(rows, key=worth)
        missing.difference_update(_meetings(best, strength))
        uses.update(enumerate(best))
        chosen.append(best)
    return chosen


def _meetings(row: tuple[int, ...], strength: int) -> Iterator[tuple[tuple[int, int], ...]]:
    return combinations(enumerate(row), strength)
