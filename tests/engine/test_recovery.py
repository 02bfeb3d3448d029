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
        assert "a backward that an error has ended" in said
