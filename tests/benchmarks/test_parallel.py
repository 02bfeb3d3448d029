"""Medians, intervals and errors of the benchmark of sequence parallelism."""

import pytest

from benchmarks.parallel import compared, interval


@pytest.mark.parametrize(("count", "expected"), [(5, (0, 4)), (9, (1, 7)), (31, (9, 21))])
def test_interval_contains_the_median_with_95_percent(
    count: int, expected: tuple[int, int]
) -> None:
    assert interval(range(count)) == expected


def test_line_has_the_median_of_the_pairs() -> None:
    seconds = {"fast": 1.0, "slow": 2.0}
    line = compared("fast", "slow", 7, 64, lambda job, mode: seconds[mode])
    assert line == "fast / slow: 2.000 (2.000 to 2.000), 7 pairs, 64 tokens"


def test_line_has_the_error_of_a_mode_that_fails() -> None:
    def run(job: str, mode: str) -> float:
        if mode == "broken":
            raise RuntimeError("trace\nTypeError: no attention")
        return 1.0

    assert compared("fast", "broken", 7, 64, run) == "fast / broken: TypeError: no attention"
