"""States leave the device for a while, and training goes on as if they had stayed."""

import os
from collections.abc import Iterator

import pytest

from training.jobs import config
from training.ranks import Ranks

pytestmark = pytest.mark.engine

SCALARS = 16
"""Bytes that gloo's two worker threads may hold a moment longer: the scalar each reduced last."""


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    """Processes without a past: bytes are compared exactly, and what is left of a run may die."""
    with Ranks(2, os.environ.get("RANKS_DEVICE", "cpu")) as running:
        yield running


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_states_that_were_away_are_what_they_were(ranks: Ranks, stage: int, bf16: bool) -> None:
    settings = config(stage, 2, bf16={"enabled": bf16})
    stayed = ranks.run("training.jobs:losses", config=settings, steps=3)[0]
    for rank in ranks.run("training.surface_jobs:moved_away", settings=settings):
        assert rank["curve"] == pytest.approx(stayed, rel=1e-6)
        assert set(rank["empty"]) >= {"optim_states", "hp_params", "lp_params", "lp_grads"}
        # Host copies are as large as what was freed for them: were it not freed, more would live.
        rests = rank["rests"]
        assert rests["away"] == pytest.approx(rests["before"], abs=SCALARS)
        assert rests["back"] == pytest.approx(rests["before"], abs=SCALARS)
        # Between steps no gradients are held; then as much is freed as there is.
        assert rank["freed"] >= rank["held"] > 0


def test_a_shard_that_is_master_and_parameter_leaves_as_both(ranks: Ranks) -> None:
    alone, both = ranks.run("training.surface_jobs:single_copy_of_shards", settings=config(3))[0]
    assert alone == 0 < both
    mixed = config(2, bf16={"enabled": True})
    masters, weights = ranks.run("training.surface_jobs:single_copy_of_shards", settings=mixed)[0]
    assert masters > 0 and weights > 0


@pytest.mark.parametrize("stage", [1, 3])
def test_offload_and_reload_on_an_engine(ranks: Ranks, stage: int) -> None:
    reference = ranks.run("training.jobs:losses", config=config(stage), steps=2)[0]
    for rank in ranks.run("training.surface_jobs:offloaded", settings=config(stage)):
        assert [rank["curve"][0], rank["curve"][2]] == pytest.approx(reference, rel=1e-6)
        said = rank["said"]
        assert "optim_states are offloaded; call reload_states() first" in said["step"]
        assert "forward(): lp_params are offloaded" in said["forward"]
        assert "saving and loading" in said["save"]
        assert "ValueError" in said["device"] and "'meta'" in said["device"]
        assert "'nvme'" in said["nvme"]
        assert "'weights'" in said["name"] and "optim_states" in said["name"]


def test_parameters_that_rest_on_the_host_cannot_leave_twice(ranks: Ranks) -> None:
    settings = config(3, zero={"offload_param": {"device": "cpu"}})
    for rank in ranks.run("training.surface_jobs:refused_offload", settings=settings):
        assert "offload_param" in rank
