"""Bytes as people read them, in one place."""

import re
from pathlib import Path

import pytest

from dsconfig.report.sizes import both, counted, gib, in_gib, size

ROOMS = Path(__file__).parents[2] / "dsconfig"


@pytest.mark.parametrize(
    ("count", "told"),
    [
        (0, "0 MiB"),
        (8, "8 bytes"),
        (3 * 2**10, "3 KiB"),
        (300 * 2**20, "300 MiB"),
        (2**30, "1.0 GiB"),
        (-(5 * 2**30), "-5.0 GiB"),
    ],
)
def test_small_sizes_have_small_units(count: int, told: str) -> None:
    assert size(count) == told


def test_one_thing_is_not_several() -> None:
    assert (counted(1, "rank"), counted(0, "rank"), counted(2, "rank")) == (
        "1 rank",
        "0 ranks",
        "2 ranks",
    )


def test_both_units_stand_side_by_side() -> None:
    assert both(9e9) == "9.00 GB (8.38 GiB)" and both(0) == "-"
    assert gib(9e9) == "8.4 GiB" and in_gib(9e9) == "8.38"


def test_nobody_else_divides_by_a_gibibyte() -> None:
    """But DeepSpeed's own tables, which are printed to the letter."""
    own = {ROOMS / "report" / "sizes.py", ROOMS / "cost" / "compat.py"}
    spelled = re.compile(r"2 ?\*\* ?30|1024 ?\*\* ?3")
    others = (path for path in ROOMS.rglob("*.py") if path not in own)
    assert not [path for path in others if spelled.search(path.read_text())]
