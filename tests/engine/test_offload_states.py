"""``offload_states`` and ``reload_states`` do not change training."""

import os
from collections.abc import Iterator

import pytest

from sweeps import sweep
from training.jobs import config
from training.ranks import Ranks

pytestmark = pytest.mark.engine

SCALARS = 16
"""Bytes that gloo's two worker threads may keep longer: the scalar each reduced last."""


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    """Fresh processes: bytes are compared exactly, and earlier runs may still free some."""
    with Ranks(2, os.environ.get("RANKS_DEVICE", "cpu")) as running:
        yield running


@sweep(1, stage=[0, 1, 2, 3], bf16=[False, True])
def test_offloaded_states_are_restored(ranks: Ranks, stage: int, bf16: bool) -> None:
    settings = config(stage, 2, bf16={"enabled": bf16})
    expected = ranks.run("training.jobs:losses", config=settings, steps=3)[0]
    for rank in ranks.run("training.engine_api_jobs:offloaded_in_window", settings=settings):
        assert rank["curve"] == pytest.approx(expected, rel=1e-6)
        assert set(rank["empty"]) >= {"optim_states", "hp_params", "lp_params", "lp_grads"}
        # Host copies have the size of the freed memory; otherwise more bytes would be live.
        live = rank["live"]
        assert live["away"] == pytest.approx(live["before"], abs=SCALARS)
        assert live["back"] == pytest.approx(live["before"], abs=SCALARS)
        # Between steps there are no gradients; then as much is freed as is live.
        assert rank["freed"] >= rank["total"] > 0


def test_shared_shard_is_offloaded_once_both_states_are(ranks: Ranks) -> None:
    alone, both = ranks.run("training.engine_api_jobs:single_copy_of_shards", settings=config(3))[0]
    assert alone == 0 < both
    mixed = config(2, bf16={"enabled": True})
    masters, weights = ranks.run("training.engine_api_jobs:single_copy_of_shards", settings=mixed)[
        0
    ]
    assert masters > 0 and weights > 0


@pytest.mark.parametrize("stage", [1, 3])
def test_engine_offload_and_reload(ranks: Ranks, stage: int) -> None:
    reference = ranks.run("training.jobs:losses", config=config(stage), steps=2)[0]
    for rank in ranks.run("training.engine_api_jobs:offloaded", settings=config(stage)):
        assert [rank["curve"][0], rank["curve"][2]] == pytest.approx(reference, rel=1e-6)
        output = rank["messages"]
        assert "optim_states are offloaded; call reload_states() first" in output["step"]
        assert "forward(): lp_params are offloaded" in output["forward"]
        assert "saving and loading" in output["save"]
        assert "ValueError" in output["device"] and "'meta'" in output["device"]
        assert "'nvme'" in output["nvme"]
        assert "'weights'" in output["name"] and "optim_states" in output["name"]


def test_offload_states_conflicts_with_offload_param(ranks: Ranks) -> None:
    settings = config(3, zero={"offload_param": {"device": "cpu"}})
    for rank in ranks.run("training.engine_api_jobs:refused_offload", settings=settings):
        assert "offload_param" in rank
