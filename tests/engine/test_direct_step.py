"""``optimizer.step()`` after ``engine.backward`` updates the weights, as in DeepSpeed."""

from typing import Any

import pytest

from training.direct_step_jobs import SGD
from training.jobs import config
from training.ranks import RankError, Ranks

pytestmark = pytest.mark.engine
JOBS = "training.direct_step_jobs"
BF16: dict[str, Any] = {"bf16": {"enabled": True}}
FP16: dict[str, Any] = {"fp16": {"enabled": True, "initial_scale_power": 4}}
HOST: dict[str, Any] = {"zero": {"offload_optimizer": {"device": "cpu"}}}
WARMUP = {"type": "WarmupLR", "params": {"warmup_num_steps": 2, "warmup_max_lr": 0.1}}


@pytest.mark.parametrize("more", [{}, BF16, FP16, HOST], ids=["fp32", "bf16", "fp16", "host"])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_step_of_optimizer_trains_like_step_of_engine(
    ranks: Ranks, stage: int, more: dict[str, Any]
) -> None:
    if stage == 0 and more is HOST:
        pytest.skip("stage 0 does not offload")
    clipping = 0.0 if stage == 0 and not more else 0.1
    settings = config(stage, gradient_clipping=clipping, optimizer=SGD, **more)
    expected = ranks.run(f"{JOBS}:stepped", config=settings, through="engine")[0]
    found = ranks.run(f"{JOBS}:stepped", config=settings)[0]
    assert found["losses"] == pytest.approx(expected["losses"], rel=1e-6)
    assert found["losses"][-1] != found["losses"][0]
    assert expected["counters"] == (4, 4, 32) and found["counters"] == (0, 0, 0)


@pytest.mark.parametrize("stage", [0, 3])
def test_step_of_optimizer_does_not_step_the_schedule(ranks: Ranks, stage: int) -> None:
    settings = config(stage, optimizer=SGD, scheduler=WARMUP)
    moved = ranks.run(f"{JOBS}:stepped", config=settings, through="engine")[0]["rate"]
    assert ranks.run(f"{JOBS}:stepped", config=settings)[0]["rate"] != moved


@pytest.mark.parametrize("zeroes", [True, False])
def test_stage_0_in_fp32_steps_like_torch(ranks: Ranks, zeroes: bool) -> None:
    """It does not clip, and gradients accumulate until the script drops them."""
    expected = ranks.run(f"{JOBS}:plain_stepped", zeroes=zeroes, **SGD["params"])[0]
    settings = config(0, gradient_clipping=0.01, optimizer=SGD)
    found = ranks.run(f"{JOBS}:stepped", config=settings, zeroes=zeroes)[0]["losses"]
    assert found == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_sharded_stages_drop_gradients_after_the_step(ranks: Ranks, stage: int) -> None:
    settings = config(stage, optimizer=SGD)
    expected = ranks.run(f"{JOBS}:stepped", config=settings)[0]["losses"]
    found = ranks.run(f"{JOBS}:stepped", config=settings, zeroes=False)[0]["losses"]
    assert found == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("stage", [0, 1])
def test_unreduced_gradients_are_refused(ranks: Ranks, stage: int) -> None:
    with pytest.raises(RankError, match="before the end of an accumulation window"):
        ranks.run(f"{JOBS}:within_window", stage=stage, boundary=False)
    assert ranks.run(f"{JOBS}:within_window", stage=stage, boundary=True) == [0, 0]


@pytest.mark.parametrize("stage", [2, 3])
def test_gradients_reduced_in_each_micro_batch_are_stepped(ranks: Ranks, stage: int) -> None:
    assert ranks.run(f"{JOBS}:within_window", stage=stage, boundary=False) == [0, 0]


@pytest.mark.parametrize("stage", [0, 3])
def test_schedules_of_torch_follow_the_step(ranks: Ranks, stage: int) -> None:
    """A model at stage 0 keeps its parameters, so a second engine can use the optimizer."""
    expected = ranks.run(f"{JOBS}:with_schedule", stage=stage, when="before")[0]
    for when in ("after", "twice") if stage == 0 else ("after",):
        found = ranks.run(f"{JOBS}:with_schedule", stage=stage, when=when)[0]
        assert found == pytest.approx(expected, rel=1e-6), when
    assert expected[-1] < expected[0]


def test_closure_is_refused(ranks: Ranks) -> None:
    with pytest.raises(RankError, match="takes no closure"):
        ranks.run(f"{JOBS}:with_closure")


@pytest.mark.live
@pytest.mark.parametrize("clipping", [0.0, 0.01])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_losses_equal_deepspeed(ours: Ranks, deepspeed: Ranks, stage: int, clipping: float) -> None:
    for zeroes in (True, False):
        request = {
            "config": config(stage, gradient_clipping=clipping, optimizer=SGD)
            | {"zero_allow_untested_optimizer": True},
            "zeroes": zeroes,
        }
        theirs = deepspeed.run(f"{JOBS}:deepspeed_stepped", **request)[0]
        mine = ours.run(f"{JOBS}:stepped", **request)[0]
        assert mine["losses"] == pytest.approx(theirs["losses"], rel=1e-6), zeroes
        assert mine["counters"] == theirs["counters"]
