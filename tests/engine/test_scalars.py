"""Parameters that nothing can divide, for want of a dimension or of elements: whole everywhere."""

from pathlib import Path
from typing import Any

import pytest

from training.jobs import config
from training.ranks import Ranks

pytestmark = pytest.mark.engine
JOB = "training.scalar_jobs:trained"


def agree(told: list[Any], expected: list[Any], *, close: float) -> None:
    for mine, reference in zip(told, expected, strict=True):
        assert len(mine["scalars"]) == 5
        for name in ("losses", "scalars"):
            assert mine[name] == pytest.approx(reference[name], rel=close), name
        if None not in reference["norms"]:
            assert mine["norms"] == pytest.approx(reference["norms"], rel=close)
    assert told[0]["scalars"] == told[1]["scalars"]


@pytest.mark.parametrize("accumulation", [1, 3])
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_every_stage_trains_them_alike(ranks: Ranks, stage: int, accumulation: int) -> None:
    more = {"gradient_accumulation_steps": accumulation, "gradient_clipping": 0.1}
    expected = ranks.once(JOB, settings=config(0, **more))
    told = ranks.run(JOB, settings=config(stage, **more))
    agree(told, expected, close=1e-5)
    norms = ranks.once(JOB, settings=config(1, **more))[0]["norms"]
    assert told[0]["norms"] == pytest.approx(norms, rel=1e-5)


@pytest.mark.parametrize("stage", [2, 3])
def test_a_sum_over_ranks_is_no_mean(ranks: Ranks, stage: int) -> None:
    more = {"gradient_accumulation_steps": 2, "gradient_allreduce_op": "sum"}
    expected = ranks.once(JOB, settings=config(0, **more))
    agree(ranks.run(JOB, settings=config(stage, **more)), expected, close=1e-5)


@pytest.mark.parametrize("kind", ["bf16", "fp16"])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_in_16_bits_they_have_fp32_masters(ranks: Ranks, stage: int, kind: str) -> None:
    """One dtype in the whole model, what is frozen too; steps too small for it are not lost."""
    scale = {"initial_scale_power": 4} if kind == "fp16" else {}
    half = {kind: {"enabled": True, **scale}, "gradient_accumulation_steps": 3}
    expected = ranks.once(JOB, settings=config(0, gradient_accumulation_steps=3))
    told = ranks.run("training.scalar_jobs:in_16_bits", settings=config(stage, **half))
    for mine, reference in zip(told, expected, strict=True):
        assert mine["losses"] == pytest.approx(reference["losses"], rel=3e-2)
        assert mine["dtypes"] == [{"bf16": "torch.bfloat16", "fp16": "torch.float16"}[kind]]
        assert mine["masters"] == pytest.approx(reference["scalars"], rel=2e-2)
        assert mine["scalars"] == pytest.approx(mine["masters"], rel=4e-3)
        assert mine["scalars"] != mine["masters"]


@pytest.mark.parametrize("stage", [1, 3])
def test_what_is_written_to_one_of_16_bits_reaches_its_master(ranks: Ranks, stage: int) -> None:
    settings = config(stage, bf16={"enabled": True})
    for told in ranks.run("training.scalar_jobs:written_to", settings=settings):
        assert told["left alone"] == told["before"] != told["shown"]
        assert told["gathered"] == [0.25, 0.25]
        assert told["loaded"] == [0.375, 0.375]
        given, masters = told["loaded at once"]
        assert masters == given
        assert told["clamped"] == pytest.approx(0.25, abs=0.05)
        assert told["next engine"] == [0.375, "torch.float32"]


def test_under_zero_init_they_show_the_dtype_of_the_config(ranks: Ranks) -> None:
    settings = config(3, bf16={"enabled": True})
    for told in ranks.run("training.scalar_jobs:built_in_pieces", settings=settings):
        assert told["dtypes"] == ["torch.bfloat16"]
        assert told["masters"] == pytest.approx(told["built"], rel=1e-7)


@pytest.mark.parametrize("stage", [1, 3])
def test_in_16_bits_a_run_goes_on_from_a_checkpoint(
    ranks: Ranks, tmp_path: Path, stage: int
) -> None:
    settings = config(stage, bf16={"enabled": True})
    whole = ranks.run(JOB, settings=settings)
    told = ranks.run(JOB, settings=settings, folder=str(tmp_path))
    agree(told, whole, close=1e-6)


@pytest.mark.parametrize("stage", [0, 2, 3])
def test_a_run_with_them_goes_on_from_a_checkpoint(
    ranks: Ranks, tmp_path: Path, stage: int
) -> None:
    whole = ranks.once(JOB, settings=config(stage))
    told = ranks.run(JOB, settings=config(stage), folder=str(tmp_path))
    agree(told, whole, close=1e-6)
    assert all(each["empty"] == [[1, 0, 6], [1, 0, 6]] for each in told)


def test_they_go_to_the_host_with_the_optimizer(ranks: Ranks) -> None:
    settings = config(3, zero={"offload_optimizer": {"device": "cpu"}})
    agree(ranks.run(JOB, settings=settings), ranks.once(JOB, settings=config(3)), close=1e-5)


@pytest.mark.parametrize("precision", [{}, {"bf16": {"enabled": True}}], ids=["fp32", "bf16"])
@pytest.mark.parametrize("stage", [1, 3])
def test_a_run_with_them_goes_on_from_deepspeeds_files(
    ranks: Ranks, tmp_path: Path, stage: int, precision: dict[str, Any]
) -> None:
    """Their moments have no dimension either; nor has a group of no weights a place there."""
    job = "training.scalar_jobs:in_deepspeeds_files"
    settings = config(stage, **precision)
    del settings["optimizer"]
    for told in ranks.run(job, settings=settings, folder=str(tmp_path)):
        assert told["scalars"] == pytest.approx(told["expected"], rel=1e-6)
        assert told["from the start"] == pytest.approx(told["expected"], rel=1e-6)
