"""Saving weights of stage 3 on one rank explains how to gather, and writes nothing."""

from pathlib import Path
from typing import Any

import pytest

from training.ranks import Ranks
from training.saving_jobs import expected_shapes

pytestmark = pytest.mark.engine
JOB = "training.saving_jobs:saved_on_rank_0"


@pytest.mark.parametrize("precision", [{}, {"bf16": {"enabled": True}}], ids=["fp32", "bf16"])
def test_saving_shards_is_refused(ranks: Ranks, tmp_path: Path, precision: dict[str, Any]) -> None:
    result = ranks.run(JOB, precision=precision, folder=str(tmp_path))[0]
    ways = ["copied", "module", "nested", "parameter", "safetensors", "torch"]
    assert sorted(result["errors"]) == ways
    for way, message in result["errors"].items():
        assert message.startswith("ShardedSaveError: rank 0 cannot save these weights"), way
        assert "has written none" in message and "save_16bit_model(folder)" in message
        assert "GatheredParameters" in message and "accelerator.get_state_dict" in message
    assert result["written"] == ["model.pt"]
    assert result["earlier"] == "an earlier checkpoint"
    assert result["shapes"].pop("is plain")
    assert result["shapes"] == expected_shapes()


@pytest.mark.parametrize("precision", [{}, {"bf16": {"enabled": True}}], ids=["fp32", "bf16"])
def test_rank_0_saves_persistent_parameters(
    ranks: Ranks, tmp_path: Path, precision: dict[str, Any]
) -> None:
    """They are full on every rank, and the other ranks train on without it."""
    job = "training.saving_jobs:saved_persistent_on_rank_0"
    results = ranks.run(job, precision=precision, folder=str(tmp_path))
    for result in results:
        assert result["full"]
        exact = 1e-2 if precision else 0  # the file has no fp32 masters
        assert result["again"] == pytest.approx(result["first"], rel=exact, abs=0)
    assert results[0]["first"] == results[1]["first"]
