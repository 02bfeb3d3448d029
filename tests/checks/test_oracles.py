"""Verdicts on recorded configs match the real programs."""

from pathlib import Path

import pytest

import replay

ORACLE = Path(__file__).parents[1] / "oracle"


@pytest.mark.parametrize(
    ("name", "path", "least"),
    [
        ("bad_configs", "bad_configs.json", 170),
        ("versions", "versions.jsonl", 800),
        ("corpus", "corpus", 300),
    ],
)
def test_recorded_verdicts_match(name, path, least):
    wrong, total = replay.run(name, ORACLE / path)
    assert total >= least
    assert not wrong
