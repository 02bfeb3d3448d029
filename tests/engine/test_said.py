"""What an engine says of a config that it runs."""

import pytest

import dsconfig
from dsengine.loop import planning

pytestmark = pytest.mark.engine


def test_what_several_engines_configs_share_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(planning, "print_rank0", said.append)
    monkeypatch.setattr(planning, "_PRINTED", set())
    zero = {"stage": 2, "max_live_parameters": 5}
    for more in ({}, {}, {"max_reuse_distance": 5}):
        config = {"train_batch_size": 1, "zero_optimization": zero | more}
        planning.print_findings(
            dsconfig.validate(dsconfig.read(config), runtime="dsengine").warnings
        )
    assert len(said) == 2
    assert "max_live_parameters" in said[0]
    assert "max_reuse_distance" in said[1] and "max_live_parameters" not in said[1]
