"""A second ``initialize`` of a model takes it over from the engine that has it."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.torch_version import TorchVersion

from training.ranks import Ranks

pytestmark = pytest.mark.engine
JOBS = "training.taking_over_jobs"
BF16 = {"bf16": {"enabled": True}}
HOST = {"offload_optimizer": {"device": "cpu"}}


@pytest.mark.parametrize("ending", ["kept", "destroyed", "dropped"])
@pytest.mark.parametrize("stages", [[0, 0], [1, 1], [2, 2], [3, 3], [3, 1], [2, 3], [3, 0, 3]])
def test_training_goes_on_as_with_one_engine(ranks: Ranks, stages: list[int], ending: str) -> None:
    for told in ranks.run(f"{JOBS}:curve", stages=stages, more={}, zero={}, ending=ending):
        assert told["losses"] == pytest.approx(told["whole"], rel=1e-6)


@pytest.mark.parametrize(
    ("more", "zero"), [(BF16, {}), ({}, HOST), ({}, HOST | {"offload_param": {"device": "cpu"}})]
)
@pytest.mark.parametrize("stage", [2, 3])
def test_so_it_does_in_other_dtypes_and_places(
    ranks: Ranks, stage: int, more: dict[str, Any], zero: dict[str, Any]
) -> None:
    if stage == 2:
        zero = {key: value for key, value in zero.items() if key != "offload_param"}
    for told in ranks.run(f"{JOBS}:curve", stages=[stage, stage], more=more, zero=zero):
        assert told["losses"] == pytest.approx(told["whole"], rel=1e-6)


@pytest.mark.parametrize("stage", [0, 1, 3])
def test_the_model_is_an_ordinary_one_again(ranks: Ranks, stage: int) -> None:
    for told in ranks.run(f"{JOBS}:what_is_left", stage=stage):
        assert told["classes"] and told["names"] and told["plain"]
        assert told["dtypes"] == ["torch.float32"] and told["hooks"] == 0
        assert list(told["refused"]) == ["forward", "step"]
        for words in told["refused"].values():
            assert "another initialize() has taken over this engine's model" in words


@pytest.mark.parametrize("stage", [0, 2, 3])
def test_parameters_from_before_lead_to_what_is_trained(ranks: Ranks, stage: int) -> None:
    for told in ranks.run(f"{JOBS}:an_object_from_before", stage=stage):
        assert told == {"shape": True, "moved": True}


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_whole_weights_go_into_a_model_that_an_engine_has(
    ranks: Ranks, tmp_path: Path, stage: int
) -> None:
    for told in ranks.run(f"{JOBS}:after_loading", stage=stage, folder=str(tmp_path)):
        assert told == {"same model": True, "plain": True, "equal": True}


def test_a_parameter_of_zero_init_keeps_its_number_in_a_gather(ranks: Ranks) -> None:
    assert ranks.run(f"{JOBS}:told_inside") == [[True] * 5] * 2


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_a_derivative_by_torch_func_is_that_of_the_model(ranks: Ranks, stage: int) -> None:
    if stage and TorchVersion(torch.__version__) < (2, 13):
        pytest.skip("a unit of fully_shard does not let torch.func through")
    assert ranks.run(f"{JOBS}:derivative", stage=stage) == [[0.0] * 3] * 2


@pytest.mark.parametrize("stages", [[1, 1], [3, 1], [3, 3]])
@pytest.mark.parametrize(
    "change", ["another head", "a layer less", "a layer inside another", "another weight"]
)
def test_a_script_may_have_changed_the_model(ranks: Ranks, stages: list[int], change: str) -> None:
    for told in ranks.run(f"{JOBS}:after_surgery", stages=stages, change=change):
        assert told["losses"] == pytest.approx(told["expected"], rel=1e-6)


@pytest.mark.parametrize("stages", [[0, 1], [1, 1], [2, 3], [3, 3]])
def test_what_was_frozen_meanwhile_stays_so(ranks: Ranks, stages: list[int]) -> None:
    expected = [False, False, True, True, True, True]
    assert ranks.run(f"{JOBS}:frozen_in_between", stages=stages) == [expected] * 2


@pytest.mark.parametrize("stage", [0, 2])
def test_an_end_of_the_first_engine_leaves_gradients_of_the_second(
    ranks: Ranks, stage: int
) -> None:
    for before, *after in ranks.run(f"{JOBS}:the_first_is_destroyed_late", stage=stage):
        assert before > 0 and after == [before, before]


@pytest.mark.parametrize("stage", [0, 1, 3])
def test_what_debugging_reads_is_that_of_the_last_engine(ranks: Ranks, stage: int) -> None:
    assert ranks.run(f"{JOBS}:what_debugging_reads", stage=stage) == [[True] * 12] * 2


@pytest.mark.parametrize("stages", [[3, 3], [1, 0]])
def test_parameters_of_zero_init_lead_to_what_is_trained(ranks: Ranks, stages: list[int]) -> None:
    assert ranks.run(f"{JOBS}:an_object_of_zero_init", stages=stages) == [[True] * 6] * 2


@pytest.mark.parametrize("stage", [0, 1, 3])
def test_weights_of_another_shape_do_not_go_into_a_model(
    ranks: Ranks, tmp_path: Path, stage: int
) -> None:
    for said in ranks.run(f"{JOBS}:loading_what_does_not_fit", stage=stage, folder=str(tmp_path)):
        assert "size mismatch for head.weight" in said and said.endswith("(5, 6)")


def test_blocks_recompute_as_the_last_config_says(ranks: Ranks) -> None:
    assert ranks.run(f"{JOBS}:recomputed", stages=[3, 3, 0]) == [[3, 0, 0]] * 2


@pytest.mark.parametrize(("stage", "more"), [(3, {}), (1, {}), (0, BF16)])
def test_weights_that_another_engine_trains_are_refused(
    ranks: Ranks, stage: int, more: dict[str, Any]
) -> None:
    """Until it is destroyed: it would train what no forward reads, or overwrite what is trained."""
    for said in ranks.run(f"{JOBS}:a_part_of_replicas", stage=stage, more=more):
        assert "another engine still trains parameters of this model: destroy() that engine" in said
    assert ranks.run(f"{JOBS}:a_part_of_replicas", stage=0, more={}) == ["accepted"] * 2


def test_an_optimizer_tells_the_scale_of_the_engine_that_has_it(ranks: Ranks) -> None:
    assert ranks.run(f"{JOBS}:told_scale", stage=0) == [[16.0, 16.0, True]] * 2
