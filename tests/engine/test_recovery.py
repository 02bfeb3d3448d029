"""A failed pass that is caught on every rank does not change training."""

import pytest

from sweeps import sweep
from training.jobs import config
from training.ranks import Ranks

pytestmark = pytest.mark.engine
JOB = "training.recovery_jobs:curve"
STAGES = (0, 1, 2, 3)


@sweep(1, stage=STAGES, where=["forward", "backward"])
def test_caught_error_does_not_change_training(ranks: Ranks, stage: int, where: str) -> None:
    expected = ranks.once(JOB, config=config(stage), fails_in="")[0]
    assert ranks.run(JOB, config=config(stage), fails_in=where)[0] == expected


@sweep(1, stage=[1, 2, 3], where=["forward", "backward"])
def test_caught_error_does_not_change_training_of_hosts_that_run_ahead(
    ranks: Ranks, stage: int, where: str
) -> None:
    job = "training.recovery_jobs:curve_ahead"
    expected = ranks.once(job, config=config(stage), fails_in="")[0]
    assert ranks.run(job, config=config(stage), fails_in=where)[0] == expected


def test_host_that_runs_ahead_counts_collectives_and_waits_where_it_reads(ranks: Ranks) -> None:
    for counted, issued, value in ranks.run("training.recovery_jobs:collectives_ahead"):
        assert [*counted.values()] == [*issued.values()] == [3]
        assert value == 2


@pytest.mark.parametrize("stage", STAGES)
def test_window_restarts_after_failed_backward(ranks: Ranks, stage: int) -> None:
    settings = config(stage, 2, bf16={"enabled": True})
    expected = ranks.once(JOB, config=settings, fails_in="")[0]
    assert ranks.run(JOB, config=settings, fails_in="backward", after=1)[0] == expected


@pytest.mark.parametrize("stage", STAGES)
def test_failed_direct_backward_does_not_change_training(ranks: Ranks, stage: int) -> None:
    settings = config(stage)
    del settings["optimizer"]
    expected = ranks.once(JOB, config=settings, fails_in="", direct=True)[0]
    assert ranks.run(JOB, config=settings, fails_in="backward", direct=True)[0] == expected


@pytest.mark.parametrize(
    "zero",
    [
        {"offload_optimizer": {"device": "cpu"}},
        {"offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}},
        {"stage3_param_persistence_threshold": 10_000},
    ],
)
def test_failed_backward_with_offload_does_not_change_training(
    ranks: Ranks, zero: dict[str, object]
) -> None:
    settings = config(3, 2, bf16={"enabled": True}, zero=zero)
    expected = ranks.once(JOB, config=settings, fails_in="")[0]
    assert ranks.run(JOB, config=settings, fails_in="backward", after=1)[0] == expected


def test_step_after_failed_backward_is_refused(ranks: Ranks) -> None:
    for stage in STAGES:
        output = ranks.run(
            "training.recovery_jobs:step_after_failed_backward", config=config(stage)
        )[0]
        assert "after a failed backward" in output


@sweep(1, stage=STAGES, way=["forward", "evaluation", "again"])
def test_failed_forward_keeps_gradients(ranks: Ranks, stage: int, way: str) -> None:
    """Neither a failing forward nor a recomputed one drops gradients."""
    job = "training.recovery_jobs:norms"
    expected = ranks.once(job, config=config(stage, 2), way="")[0]
    assert ranks.run(job, config=config(stage, 2), way=way)[0] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("stage", STAGES)
def test_failed_recovery_is_retried(ranks: Ranks, stage: int) -> None:
    job = "training.recovery_jobs:failed_recovery"
    expected = ranks.run(job, config=config(stage), again=False)[0]
    assert ranks.run(job, config=config(stage), again=True)[0] == expected


def test_step_after_failed_backward_of_earlier_loss_is_refused(ranks: Ranks) -> None:
    for stage in STAGES:
        output = ranks.run(
            "training.recovery_jobs:failed_backward_of_earlier_loss", config=config(stage)
        )[0]
        assert "after a failed backward" in output
