"""Sizes and schedules change when something happens, never what is computed."""

from collections.abc import Iterator

import pytest

from training.jobs import config
from training.ranks import Ranks

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    with Ranks(2) as running:
        yield running


def curve(ranks: Ranks, stage: int, **zero: object) -> list[float]:
    return ranks.run("training.jobs:losses", config=config(stage, 2, zero=zero), steps=5)[0]


SIZES = [
    {"reduce_bucket_size": 1_000, "allgather_bucket_size": 1_000},
    {"reduce_bucket_size": 1_000_000_000, "allgather_bucket_size": 1_000_000_000},
    {"overlap_comm": True},
    {"overlap_comm": False},
    {"round_robin_gradients": True},
]
SCHEDULES = [
    {"stage3_prefetch_bucket_size": 0},
    {"stage3_prefetch_bucket_size": 1_000_000_000},
    {"stage3_param_persistence_threshold": 1_000_000_000},
    {"stage3_param_persistence_threshold": 100},
    {"stage3_max_reuse_distance": 0},
    {"stage3_max_live_parameters": 0, "stage3_max_reuse_distance": 0},
    {"zero_hpz_partition_size": 2},
]


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_losses_do_not_depend_on_buckets_or_overlap(ranks: Ranks, stage: int) -> None:
    reference = curve(ranks, stage)
    for sizes in SIZES:
        assert curve(ranks, stage, **sizes) == pytest.approx(reference, rel=1e-6), sizes


def test_losses_do_not_depend_on_when_stage_3_gathers(ranks: Ranks) -> None:
    reference = curve(ranks, 3)
    for schedule in SCHEDULES:
        assert curve(ranks, 3, **schedule) == pytest.approx(reference, rel=1e-6), schedule
