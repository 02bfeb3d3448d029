"""``docs/promises.md`` names tests that there are."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROWS = [
    line.split("|")[1:-1]
    for line in (ROOT / "docs/promises.md").read_text().splitlines()
    if line.startswith("|")
][2:]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0].strip())
def test_every_promise_is_held_by_a_test(row: list[str]) -> None:
    named = re.fullmatch(r" `(tests/\S+\.py)::(test_\w+)` ", row[2])
    assert named is not None, row
    assert f"def {named[2]}(" in (ROOT / named[1]).read_text()


def test_there_are_promises() -> None:
    assert len(ROWS) > 20
