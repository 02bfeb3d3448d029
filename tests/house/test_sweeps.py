"""The subset of a sweep that the suite runs has every value and every pair of values."""

from itertools import combinations, product
from math import prod

import pytest

from sweeps import covering, sweep


@pytest.mark.parametrize("sizes", [(2, 2), (3, 2, 4), (2, 3, 2, 2), (4, 1, 3)])
def test_any_two_values_meet(sizes: tuple[int, ...]) -> None:
    rows = covering(sizes, 2)
    for first, second in combinations(range(len(sizes)), 2):
        met = {(row[first], row[second]) for row in rows}
        assert met == {*product(range(sizes[first]), range(sizes[second]))}
    assert len(rows) <= prod(sizes)


@pytest.mark.parametrize(
    ("sizes", "strength", "number"), [((4, 3, 2), 1, 4), ((2, 2, 2), 2, 4), ((3, 2, 3, 2), 2, 9)]
)
def test_subset_is_as_small_as_possible(sizes: tuple[int, ...], strength: int, number: int) -> None:
    assert len(covering(sizes, strength)) == number


def test_values_are_used_about_equally_often() -> None:
    uses = [second for _, second in covering((7, 3), 1)]
    assert sorted(map(uses.count, range(3))) == [2, 2, 3]


def test_other_combinations_are_long() -> None:
    mark = sweep(1, stage=[0, 3], precision={"fp32": {}, "bf16": {"bf16": {"enabled": True}}})
    names, rows = mark.args
    assert names == ["stage", "precision"]
    assert [row.id for row in rows if not row.marks] == ["0-fp32", "3-bf16"]
    assert [row.id for row in rows if row.marks] == ["0-bf16", "3-fp32"]
    assert rows[-1].values == (3, {"bf16": {"enabled": True}})
