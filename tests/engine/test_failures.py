"""Errors in initialize are raised on every rank with a clear message."""

from pathlib import Path

import pytest

from dsengine.loop.planning import shared_samples
from training.ranks import Ranks

pytestmark = pytest.mark.engine


@pytest.mark.parametrize(
    ("job", "words"),
    [
        ("different_configs", ["ValueError", "rank 1", "gradient_clipping"]),
        ("different_models", ["ValueError", "rank 1", "blocks.2"]),
        ("plan_for_another_world", ["ValueError", "8 ranks", "2 are running", "--gpus 2"]),
        ("different_plan_on_one_rank", ["ValueError", "rank 1", "different plan"]),
        ("plan_and_config", ["ValueError", "exactly one", "2 given"]),
        ("config_refused_on_one_rank", ["ValueError", "overlap_com"]),
        ("no_config_on_one_rank", ["ValueError", "config="]),
        ("no_config", ["ValueError", "config="]),
        ("unknown_optimizer", ["ValueError", "/optimizer/type"]),
        ("stray_parameter", ["ValueError", "group 0", "(3,)"]),
        (
            "mpu_with_tensor_parallelism",
            ["ValueError", "get_tensor_model_parallel_world_size() is 2"],
        ),
        ("mesh_with_sequence_parallelism", ["ValueError", "DistributedAttention"]),
        ("marked_parameter", ["ValueError", "'twice.weight' is marked tensor_model_parallel"]),
        (
            "submodule_of_engine_model",
            ["ValueError", "is already under fully_shard", "build a new model"],
        ),
    ],
)
def test_invalid_initialize_raises_on_every_rank(ranks: Ranks, job: str, words: list[str]) -> None:
    for message in ranks.run(f"training.failing_jobs:{job}"):
        for word in words:
            assert word in message


@pytest.mark.parametrize("mesh", [None, (2,), (1, 1)])
def test_mesh_without_sample_splitting_is_accepted(mesh: tuple[int, ...] | None) -> None:
    assert shared_samples(None, mesh) == 1


def test_mesh_of_other_ranks_is_refused() -> None:
    with pytest.raises(ValueError, match=r"mesh_param is \(2, 4\)"):
        shared_samples(None, (2, 4))


@pytest.mark.parametrize(
    ("job", "words"),
    [
        ("plan_for_another_model", ["PlanError", "another model", "plan again"]),
        ("file_without_plan", ["ValueError", "ds.0.json: not a plan", "dsconfig plan"]),
    ],
)
def test_unsuitable_plan_file_is_refused(
    ranks: Ranks, tmp_path: Path, job: str, words: list[str]
) -> None:
    message = ranks.run(f"training.failing_jobs:{job}", folder=str(tmp_path))[0]
    for word in words:
        assert word in message


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_model_with_fewer_parameters_than_ranks_trains(ranks: Ranks, stage: int) -> None:
    losses = ranks.run("training.failing_jobs:fewer_parameters_than_ranks", stage=stage)[0]
    assert losses[-1] < losses[0]
