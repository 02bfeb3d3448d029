"""Parameters without a dimension or elements are replicated on every rank."""

from pathlib import Path
from typing import Any

import pytest

from sweeps import sweep
from training.jobs import config
from training.ranks import Ranks

pytestmark = pytest.mark.engine
JOB = "training.scalar_jobs:trained"


def agree(result: list[Any], expected: list[Any], *, rel: float) -> None:
    for mine, reference in zip(result, expected, strict=True):
        assert len(mine["scalars"]) == 5
        for name in ("losses", "scalars"):
            assert mine[name] == pytest.approx(reference[name], rel=rel), name
        if None not in reference["norms"]:
            assert mine["norms"] == pytest.approx(reference["norms"], rel=rel)
    assert result[0]["scalars"] == result[1]["scalars"]


@sweep(1, stage=[1, 2, 3], accumulation=[1, 3])
def test_stages_agree_with_scalar_parameters(ranks: Ranks, stage: int, accumulation: int) -> None:
    more = {"gradient_accumulation_steps": accumulation, "gradient_clipping": 0.1}
    expected = ranks.once(JOB, settings=config(0, **more))
    result = ranks.run(JOB, settings=config(stage, **more))
    agree(result, expected, rel=1e-5)
    norms = ranks.once(JOB, settings=config(1, **more))[0]["norms"]
    assert result[0]["norms"] == pytest.approx(norms, rel=1e-5)


@pytest.mark.parametrize("stage", [2, 3])
def test_scalar_gradients_are_summed_if_configured(ranks: Ranks, stage: int) -> None:
    more = {"gradient_accumulation_steps": 2, "gradient_allreduce_op": "sum"}
    expected = ranks.once(JOB, settings=config(0, **more))
    agree(ranks.run(JOB, settings=config(stage, **more)), expected, rel=1e-5)


@sweep(1, stage=[0, 1, 2, 3], kind=["bf16", "fp16"])
def test_16_bit_scalars_have_fp32_masters(ranks: Ranks, stage: int, kind: str) -> None:
    """The model has one dtype, also for frozen weights; small updates are not lost."""
    scale = {"initial_scale_power": 4} if kind == "fp16" else {}
    half = {kind: {"enabled": True, **scale}, "gradient_accumulation_steps": 3}
    expected = ranks.once(JOB, settings=config(0, gradient_accumulation_steps=3))
    result = ranks.run("training.scalar_jobs:in_16_bits", settings=config(stage, **half))
    for mine, reference in zip(result, expected, strict=True):
        assert mine["losses"] == pytest.approx(reference["losses"], rel=3e-2)
        assert mine["dtypes"] == [{"bf16": "torch.bfloat16", "fp16": "torch.float16"}[kind]]
        assert mine["masters"] == pytest.approx(reference["scalars"], rel=2e-2)
        assert mine["scalars"] == pytest.approx(mine["masters"], rel=4e-3)
        assert mine["scalars"] != mine["masters"]


@pytest.mark.parametrize("stage", [1, 3])
def test_write_to_16_bit_scalar_reaches_its_master(ranks: Ranks, stage: int) -> None:
    settings = config(stage, bf16={"enabled": True})
    for result in ranks.run("training.scalar_jobs:written_scalar", settings=settings):
        assert result["left alone"] == result["before"] != result["rounded"]
        assert result["gathered"] == [0.25, 0.25]
        assert result["loaded"] == [0.375, 0.375]
        loaded, masters = result["loaded at once"]
        assert masters == loaded
        assert result["clamped"] == pytest.approx(0.25, abs=0.05)
        assert result["next engine"] == [0.375, "torch.float32"]


def test_zero_init_scalars_have_config_dtype(ranks: Ranks) -> None:
    settings = config(3, bf16={"enabled": True})
    for result in ranks.run("training.scalar_jobs:under_zero_init", settings=settings):
        assert result["dtypes"] == ["torch.bfloat16"]
        assert result["masters"] == pytest.approx(result["built"], rel=1e-7)


@pytest.mark.parametrize("stage", [1, 3])
def test_16_bit_scalars_resume_from_checkpoint(ranks: Ranks, tmp_path: Path, stage: int) -> None:
    settings = config(stage, bf16={"enabled": True})
    uninterrupted = ranks.run(JOB, settings=settings)
    result = ranks.run(JOB, settings=settings, folder=str(tmp_path))
    agree(result, uninterrupted, rel=1e-6)


@pytest.mark.parametrize("stage", [0, 2, 3])
def test_scalars_resume_from_checkpoint(ranks: Ranks, tmp_path: Path, stage: int) -> None:
    uninterrupted = ranks.once(JOB, settings=config(stage))
    result = ranks.run(JOB, settings=config(stage), folder=str(tmp_path))
    agree(result, uninterrupted, rel=1e-6)
    assert all(each["empty"] == [[1, 0, 6], [1, 0, 6]] for each in result)


def test_scalars_train_with_offloaded_optimizer(ranks: Ranks) -> None:
    settings = config(3, zero={"offload_optimizer": {"device": "cpu"}})
    agree(ranks.run(JOB, settings=settings), ranks.once(JOB, settings=config(3)), rel=1e-5)


@pytest.mark.parametrize("precision", [{}, {"bf16": {"enabled": True}}], ids=["fp32", "bf16"])
@pytest.mark.parametrize("stage", [1, 3])
def test_scalars_resume_from_deepspeed_checkpoint(
    ranks: Ranks, tmp_path: Path, stage: int, precision: dict[str, Any]
) -> None:
    """Their moments have no dimension either, and an empty group has no entry there."""
    job = "training.scalar_jobs:resumed_from_deepspeed"
    settings = config(stage, **precision)
    del settings["optimizer"]
    for result in ranks.run(job, settings=settings, folder=str(tmp_path)):
        assert result["scalars"] == pytest.approx(result["expected"], rel=1e-6)
        assert result["from the start"] == pytest.approx(result["expected"], rel=1e-6)
