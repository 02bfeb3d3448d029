"""Estimates are equal to the pinned ones, to the byte."""

import json

from cost import pinned


def test_estimates_equal_the_pinned_figures() -> None:
    """`PYTHONPATH=tests python -m cost.pinned` writes the file; say in the changelog why."""
    kept, now = json.loads(pinned.FILE.read_text()), json.loads(json.dumps(pinned.figures()))
    assert len(now) == 218
    assert {name: (kept.get(name), row) for name, row in now.items() if kept.get(name) != row} == {}
    assert kept.keys() == now.keys()
