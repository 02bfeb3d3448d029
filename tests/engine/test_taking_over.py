"""A second ``initialize`` of a model takes it over from the engine that has it."""

from pathlib import Path
from typing import Any

import pytest

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
            assert "another initialize() has taken over the model" in words


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
    assert ranks.run(f"{JOBS}:derivative", stage=stage) == [[0.0] * 3] * 2
