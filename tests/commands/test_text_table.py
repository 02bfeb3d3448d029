"""Tables in narrow terminals."""

import pytest

from dsconfig.commands.text_table import TextTable

KEY = "stage3_param_persistence_threshold"


@pytest.mark.parametrize("columns", [60, 70, 80, 120])
def test_keys_are_not_broken(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    table = TextTable("component, in backward", ">GiB", "key")
    table.add_row("embedding output and token ids", "12.26", KEY)
    lines = str(table).splitlines()
    assert sum(KEY in line for line in lines) == 1
    assert max(map(len, lines)) <= columns
    assert any(line.startswith("embedding output") for line in lines)


def test_empty_rows_are_kept() -> None:
    table = TextTable("a", "b")
    table.add_row("", "")
    assert str(table) == "a  b\n"
