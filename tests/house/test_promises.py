"""Each promise in docs/promises.md names a test that exists."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMED = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", (ROOT / "docs" / "promises.md").read_text())


def test_every_promise_has_its_test() -> None:
    rows = [
        line for line in (ROOT / "docs" / "promises.md").read_text().splitlines() if "| `" in line
    ]
    assert rows and len(rows) == len(NAMED)


@pytest.mark.parametrize(("file", "name"), NAMED)
def test_the_test_of_a_promise_exists(file: str, name: str) -> None:
    assert f"\ndef {name}(" in (ROOT / file).read_text()
