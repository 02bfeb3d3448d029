"""What is wrong is said on every rank, at once, in words a person can act on."""

from pathlib import Path

import pytest

from dsengine.loop.planning import refuse_split_layers
from training import models
from training.ranks import Ranks

pytestmark = pytest.mark.engine


@pytest.mark.parametrize(
    ("job", "words"),
    [
        ("different_configs", ["ValueError", "rank 1", "gradient_clipping"]),
        ("different_models", ["ValueError", "rank 1", "blocks.2"]),
        ("plan_for_another_world", ["ValueError", "8 ranks", "2 are running", "--gpus 2"]),
        ("another_plan_on_one_rank", ["ValueError", "rank 1", "another plan"]),
        ("a_plan_and_a_config", ["ValueError", "exactly one", "2 given"]),
        ("a_config_refused_on_one_rank", ["ValueError", "overlap_com"]),
        ("no_config_on_one_rank", ["ValueError", "config="]),
        ("no_config", ["ValueError", "config="]),
        ("unknown_optimizer", ["ValueError", "/optimizer/type"]),
        ("stray_parameter", ["ValueError", "group 0", "(3,)"]),
        ("an_mpu_of_divided_layers", ["ValueError", "get_tensor_model_parallel_world_size() is 2"]),
        ("a_mesh_of_divided_samples", ["ValueError", "mesh_param is (1, 2)"]),
        ("a_marked_parameter", ["ValueError", "'twice.weight' is marked tensor_model_parallel"]),
        (
            "a_part_of_an_engines_model",
            ["ValueError", "is already under fully_shard", "build a new model"],
        ),
    ],
)
def test_a_wrong_start_is_one_clear_error_on_every_rank(
    ranks: Ranks, job: str, words: list[str]
) -> None:
    for message in ranks.run(f"training.failing_jobs:{job}"):
        for word in words:
            assert word in message


@pytest.mark.parametrize("mesh", [None, (2,), (2, 1)])
def test_a_mesh_whose_ranks_have_whole_samples_is_taken(mesh: tuple[int, ...] | None) -> None:
    refuse_split_layers(models.tied(), None, mesh)


@pytest.mark.parametrize(
    ("job", "words"),
    [
        ("plan_for_another_model", ["PlanError", "another model", "plan again"]),
        ("no_plan_in_the_file", ["ValueError", "ds.0.json: not a plan", "dsconfig plan"]),
    ],
)
def test_a_file_that_does_not_hold_the_plan_is_refused(
    ranks: Ranks, tmp_path: Path, job: str, words: list[str]
) -> None:
    message = ranks.run(f"training.failing_jobs:{job}", folder=str(tmp_path))[0]
    for word in words:
        assert word in message


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_a_model_smaller_than_the_number_of_ranks_trains(ranks: Ranks, stage: int) -> None:
    losses = ranks.run("training.failing_jobs:fewer_parameters_than_ranks", stage=stage)[0]
    assert losses[-1] < losses[0]
