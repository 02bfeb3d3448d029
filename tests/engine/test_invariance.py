"""Bucket sizes and schedules do not change the losses."""

import pytest

from training.jobs import config
from training.ranks import Ranks

pytestmark = pytest.mark.engine


def curve(ranks: Ranks, stage: int, **zero: object) -> list[float]:
    return ranks.once("training.jobs:losses", config=config(stage, 2, zero=zero), steps=5)[0]


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


SGD = {"type": "SGD", "params": {"lr": 0.2, "momentum": 0.9}}
HALF_SGD = {"type": "SGD", "params": {"lr": 0.1, "momentum": 0.9}}


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_averaging_options_give_the_same_losses(ranks: Ranks, stage: int) -> None:
    def trained(**settings: object) -> list[float]:
        settings = {"optimizer": SGD, "gradient_clipping": 0.0, **settings}
        unscattered = {"reduce_scatter": False}
        return ranks.run(
            "training.jobs:losses", config=config(stage, 2, zero=unscattered, **settings), steps=5
        )[0]

    mean = trained()
    assert trained(prescale_gradients=True) == pytest.approx(mean, rel=1e-6)
    assert trained(gradient_predivide_factor=4.0) == pytest.approx(mean, rel=1e-6)
    if stage < 3:  # DeepSpeed refuses sums at stage 3, and the same rule applies here
        summed = trained(gradient_allreduce_op="sum", optimizer=HALF_SGD)
        assert summed == pytest.approx(mean, rel=1e-6)


@pytest.mark.long
def test_group_sharding_equals_full_sharding() -> None:
    """MiCS and hpZ on four ranks in two groups."""
    with Ranks(4) as four:

        def trained(stage: int, **zero: object) -> list[float]:
            return four.run("training.jobs:losses", config=config(stage, zero=zero), steps=4)[0]

        reference = trained(0)
        assert trained(3) == pytest.approx(reference, rel=1e-6)
        # With the default reuse distance this small model is never resharded after forward.
        hpz = {"zero_hpz_partition_size": 2, "stage3_max_reuse_distance": 0}
        assert trained(3, **hpz) == pytest.approx(reference, rel=1e-6)
        for stage in (1, 3):
            assert trained(stage, mics_shard_size=2) == pytest.approx(reference, rel=1e-6)

        # All units that reshard to two ranks share the same process groups.
        one, four_blocks = (
            four.run(
                "training.collective_jobs:groups_made", config=config(3, zero=hpz), blocks=blocks
            )[0]
            for blocks in (1, 4)
        )
        assert one == four_blocks > 0


def test_sparse_embedding_gradients_train_at_stage_0(ranks: Ranks) -> None:
    """NCCL cannot send sparse tensors, so indices and values are gathered."""
    settings = config(0, optimizer={"type": "SGD", "params": {"lr": 0.5}}, sparse_gradients=True)
    (dense, _), (sparse, sent) = (
        ranks.run("training.engine_api_jobs:embedding", settings=settings, sparse=sparse)[0]
        for sparse in (False, True)
    )
    assert sent.pop("_allgather_base_") is False
    assert not any(sent.values())
    assert sparse == pytest.approx(dense, rel=1e-6)
    assert sparse[-1] < sparse[0]
