"""A run goes on as if nothing had been after a pass that fails on every rank, if it is caught."""

import pytest

from training.jobs import config
from training.ranks import Ranks

pytestmark = pytest.mark.engine
JOB = "training.recovery_jobs:curve"
STAGES = (0, 1, 2, 3)


@pytest.mark.parametrize("where", ["forward", "backward"])
@pytest.mark.parametrize("stage", STAGES)
def test_an_error_that_is_caught_leaves_no_trace(ranks: Ranks, stage: int, where: str) -> None:
    expected = ranks.once(JOB, config=config(stage), fails_in="")[0]
    assert ranks.run(JOB, config=config(stage), fails_in=where)[0] == expected


@pytest.mark.parametrize("stage", STAGES)
def test_a_window_begins_anew(ranks: Ranks, stage: int) -> None:
    settings = config(stage, 2, bf16={"enabled": True})
    expected = ranks.once(JOB, config=settings, fails_in="")[0]
    assert ranks.run(JOB, config=settings, fails_in="backward", after=1)[0] == expected


@pytest.mark.parametrize("stage", STAGES)
def test_so_it_is_after_a_backward_of_the_script(ranks: Ranks, stage: int) -> None:
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
def test_so_it_is_where_states_are_elsewhere(ranks: Ranks, zero: dict[str, object]) -> None:
    settings = config(3, 2, bf16={"enabled": True}, zero=zero)
    expected = ranks.once(JOB, config=settings, fails_in="")[0]
    assert ranks.run(JOB, config=settings, fails_in="backward", after=1)[0] == expected


def test_a_step_without_its_gradients_is_refused(ranks: Ranks) -> None:
    for stage in STAGES:
        said = ranks.run("training.recovery_jobs:stepped_anyway", config=config(stage))[0]
        assert "after a failed backward" in said


@pytest.mark.parametrize("way", ["forward", "evaluation", "again"])
@pytest.mark.parametrize("stage", STAGES)
def test_a_forward_takes_no_gradient_away(ranks: Ranks, stage: int, way: str) -> None:
    """Neither one that fails, nor one that is done again in backward."""
    job = "training.recovery_jobs:norms"
    expected = ranks.once(job, config=config(stage, 2), way="")[0]
    assert ranks.run(job, config=config(stage, 2), way=way)[0] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("stage", STAGES)
def test_getting_over_it_may_fail_too(ranks: Ranks, stage: int) -> None:
    job = "training.recovery_jobs:recovery_fails"
    expected = ranks.run(job, config=config(stage), again=False)[0]
    assert ranks.run(job, config=config(stage), again=True)[0] == expected


def test_a_step_without_the_gradients_of_an_earlier_loss_is_refused(ranks: Ranks) -> None:
    for stage in STAGES:
        said = ranks.run("training.recovery_jobs:an_earlier_loss", config=config(stage))[0]
        assert "after a failed backward" in said
