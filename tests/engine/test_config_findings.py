"""Findings printed for a config."""

import pytest

import dsconfig
from dsengine.loop import planning

pytestmark = pytest.mark.engine


def test_shared_findings_are_printed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    output: list[str] = []
    monkeypatch.setattr(planning, "print_rank0", output.append)
    monkeypatch.setattr(planning, "_PRINTED", set())
    zero = {"stage": 2, "max_live_parameters": 5}
    for more in ({}, {}, {"max_reuse_distance": 5}):
        config = {"train_batch_size": 1, "zero_optimization": zero | more}
        planning.print_findings(
            dsconfig.validate(dsconfig.read(config), runtime="dsengine").warnings
        )
    assert len(output) == 2
    assert "max_live_parameters" in output[0]
    assert "max_reuse_distance" in output[1] and "max_live_parameters" not in output[1]
