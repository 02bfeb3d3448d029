"""Each guarantee in docs/internals/promises.md names a test that exists."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "internals" / "promises.md").read_text("utf-8")
TESTS = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)


def test_every_row_names_one_test() -> None:
    rows = [line for line in PAGE.splitlines() if "| `" in line]
    assert rows and len(rows) == len(TESTS)


@pytest.mark.parametrize(("file", "name"), TESTS)
def test_named_test_exists(file: str, name: str) -> None:
    assert f"\ndef {name}(" in (ROOT / file).read_text("utf-8")
