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


@pytest.mark.parametrize("stage", [1, 3])
def test_in_bf16_they_stay_as_they_are(ranks: Ranks, stage: int) -> None:
    settings = config(stage, bf16={"enabled": True})
    expected = ranks.once(JOB, settings=config(0))
    for mine, reference in zip(ranks.run(JOB, settings=settings), expected, strict=True):
        assert mine["losses"] == pytest.approx(reference["losses"], rel=3e-2)


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


@pytest.mark.parametrize("stage", [1, 3])
def test_a_run_with_them_goes_on_from_deepspeeds_files(
    ranks: Ranks, tmp_path: Path, stage: int
) -> None:
    """Their moments have no dimension either; nor has a group of no weights a place there."""
    job = "training.scalar_jobs:in_deepspeeds_files"
    settings = {key: value for key, value in config(stage).items() if key != "optimizer"}
    for told in ranks.run(job, settings=settings, folder=str(tmp_path)):
        assert told["scalars"] == pytest.approx(told["expected"], rel=1e-6)
        assert told["from the start"] == pytest.approx(told["expected"], rel=1e-6)
