"""Formatting of sizes and counts."""

import re
from pathlib import Path

import pytest

from dsconfig.report.sizes import both, counted, gib, in_gib, size

PACKAGE = Path(__file__).parents[2] / "dsconfig"


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 MiB"),
        (8, "8 bytes"),
        (3 * 2**10, "3 KiB"),
        (300 * 2**20, "300 MiB"),
        (2**30, "1.0 GiB"),
        (-(5 * 2**30), "-5.0 GiB"),
    ],
)
def test_small_sizes_have_small_units(count: int, text: str) -> None:
    assert size(count) == text


def test_plural_follows_the_count() -> None:
    assert (counted(1, "rank"), counted(0, "rank"), counted(2, "rank")) == (
        "1 rank",
        "0 ranks",
        "2 ranks",
    )


def test_decimal_and_binary_units() -> None:
    assert both(9e9) == "9.00 GB (8.38 GiB)" and both(0) == "-"
    assert gib(9e9) == "8.4 GiB" and in_gib(9e9) == "8.38"


def test_only_sizes_module_divides_by_a_gibibyte() -> None:
    """Exception: the tables that reproduce DeepSpeed's own output."""
    own = {PACKAGE / "report" / "sizes.py", PACKAGE / "cost" / "compat.py"}
    spelled = re.compile(r"2 ?\*\* ?30|1024 ?\*\* ?3")
    others = (path for path in PACKAGE.rglob("*.py") if path not in own)
    assert not [path for path in others if spelled.search(path.read_text())]
