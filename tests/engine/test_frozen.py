"""Frozen weights have no masters and keep a narrow dtype."""

from pathlib import Path
from typing import Any

import pytest

from sweeps import sweep
from training.jobs import config
from training.ranks import RankError, Ranks

pytestmark = pytest.mark.engine
JOB = "training.frozen_jobs:trained"
BF16: dict[str, Any] = {"bf16": {"enabled": True}}


@sweep(1, stage=[0, 1, 2, 3], dtype=["float32", "bfloat16"])
def test_only_trained_parameters_have_fp32_masters(ranks: Ranks, stage: int, dtype: str) -> None:
    for result in ranks.run(JOB, settings=config(stage, **BF16), dtype=dtype):
        assert result["frozen"] == ["torch.bfloat16"]
        assert result["trained"] == ["torch.float32"]
        assert result["unchanged"]


def test_fp32_frozen_parameters_keep_their_dtype(ranks: Ranks) -> None:
    for result in ranks.run(JOB, settings=config(2), dtype="float32"):
        assert result["frozen"] == result["trained"] == ["torch.float32"]


def test_stages_agree_with_frozen_parameters(ranks: Ranks) -> None:
    expected = ranks.once(JOB, settings=config(0, **BF16), dtype="float32")[0]["losses"]
    assert expected[-1] < expected[0]
    for stage in (1, 2, 3):
        losses = ranks.run(JOB, settings=config(stage, **BF16), dtype="bfloat16")[0]["losses"]
        assert losses == pytest.approx(expected, rel=1e-2), stage


@pytest.mark.parametrize("stage", [0, 2, 3])
def test_checkpoint_restores_frozen_parameters(ranks: Ranks, tmp_path: Path, stage: int) -> None:
    uninterrupted = ranks.once(JOB, settings=config(stage, **BF16), dtype="bfloat16")
    again = ranks.run(JOB, settings=config(stage, **BF16), dtype="bfloat16", folder=str(tmp_path))
    for mine, reference in zip(again, uninterrupted, strict=True):
        assert mine["losses"] == pytest.approx(reference["losses"], rel=1e-6)
        assert mine["unchanged"]


@pytest.mark.parametrize("stage", [1, 2])
def test_step_does_not_gather_frozen_parameters(ranks: Ranks, stage: int) -> None:
    """Adapters of 3 blocks have 3 x 2 x 4 x 32 elements; the frozen weights 5,120."""
    settings = config(stage, **BF16)
    sent = ranks.once(JOB, settings=settings, dtype="bfloat16")[0]["sent"]
    gathered = sum(count for name, count in sent.items() if "gather" in name or "send" in name)
    assert 0 < gathered <= 2 * 2 * 768


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_fp32_frozen_parameters_can_be_unfrozen(ranks: Ranks, stage: int) -> None:
    job = "training.frozen_jobs:unfrozen"
    expected = ranks.once(job, settings=config(0))[0]
    for losses in ranks.run(job, settings=config(stage)):
        assert losses == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_unfreezing_without_masters_is_refused(ranks: Ranks, stage: int) -> None:
    with pytest.raises(RankError) as result:
        ranks.run("training.frozen_jobs:unfrozen", settings=config(stage, **BF16))
    assert str(result.value).count("embed.weight was frozen when this engine was built") >= 2
