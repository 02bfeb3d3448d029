"""A second ``initialize`` of a model takes it over from the earlier engine."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.torch_version import TorchVersion

from sweeps import sweep
from training.ranks import Ranks

pytestmark = pytest.mark.engine
JOBS = "training.reinitialize_jobs"
BF16 = {"bf16": {"enabled": True}}
HOST = {"offload_optimizer": {"device": "cpu"}}


@sweep(
    1,
    stages=[[0, 0], [1, 1], [2, 2], [3, 3], [3, 1], [2, 3], [3, 0, 3]],
    ending=["kept", "destroyed", "dropped"],
)
def test_reinitialized_model_trains_like_one_engine(
    ranks: Ranks, stages: list[int], ending: str
) -> None:
    for result in ranks.run(f"{JOBS}:curve", stages=stages, more={}, zero={}, ending=ending):
        assert result["losses"] == pytest.approx(result["uninterrupted"], rel=1e-6)


@pytest.mark.parametrize(
    ("more", "zero"), [(BF16, {}), ({}, HOST), ({}, HOST | {"offload_param": {"device": "cpu"}})]
)
@pytest.mark.parametrize("stage", [2, 3])
def test_reinitialized_model_trains_with_bf16_and_offload(
    ranks: Ranks, stage: int, more: dict[str, Any], zero: dict[str, Any]
) -> None:
    if stage == 2:
        zero = {key: value for key, value in zero.items() if key != "offload_param"}
    for result in ranks.run(f"{JOBS}:curve", stages=[stage, stage], more=more, zero=zero):
        assert result["losses"] == pytest.approx(result["uninterrupted"], rel=1e-6)


@pytest.mark.parametrize("stage", [0, 1, 3])
def test_model_is_ordinary_after_reinitialize(ranks: Ranks, stage: int) -> None:
    for result in ranks.run(f"{JOBS}:model_after_reinitialize", stage=stage):
        assert result["classes"] and result["names"] and result["plain"]
        assert result["dtypes"] == ["torch.float32"] and result["hooks"] == 0
        assert list(result["refused"]) == ["forward", "step"]
        for words in result["refused"].values():
            assert "another initialize() has taken over this engine's model" in words


@pytest.mark.parametrize("stage", [0, 2, 3])
def test_original_parameters_follow_training(ranks: Ranks, stage: int) -> None:
    for result in ranks.run(f"{JOBS}:original_parameter", stage=stage):
        assert result == {"shape": True, "moved": True}


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_full_weights_load_into_engine_model(ranks: Ranks, tmp_path: Path, stage: int) -> None:
    for result in ranks.run(f"{JOBS}:after_loading", stage=stage, folder=str(tmp_path)):
        assert result == {"same model": True, "plain": True, "equal": True}


def test_zero_init_parameter_keeps_ds_id_when_gathered(ranks: Ranks) -> None:
    assert ranks.run(f"{JOBS}:attributes_when_gathered") == [[True] * 5] * 2


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_torch_func_derivative_is_unscaled(ranks: Ranks, stage: int) -> None:
    if stage and TorchVersion(torch.__version__) < "2.13":
        pytest.skip("a unit of fully_shard does not let torch.func through")
    assert ranks.run(f"{JOBS}:derivative", stage=stage) == [[0.0] * 3] * 2


@sweep(
    1,
    change=["another head", "a layer less", "a layer inside another", "another weight"],
    stages=[[1, 1], [3, 1], [3, 3]],
)
def test_reinitialize_after_model_change(ranks: Ranks, stages: list[int], change: str) -> None:
    for result in ranks.run(f"{JOBS}:after_model_change", stages=stages, change=change):
        assert result["losses"] == pytest.approx(result["expected"], rel=1e-6)


@pytest.mark.parametrize("stages", [[0, 1], [1, 1], [2, 3], [3, 3]])
def test_reinitialize_keeps_frozen_parameters(ranks: Ranks, stages: list[int]) -> None:
    expected = [False, False, True, True, True, True]
    assert ranks.run(f"{JOBS}:frozen_between_engines", stages=stages) == [expected] * 2


@pytest.mark.parametrize("stage", [0, 2])
def test_destroying_first_engine_keeps_second_gradients(ranks: Ranks, stage: int) -> None:
    for before, *after in ranks.run(f"{JOBS}:gradients_after_first_destroyed", stage=stage):
        assert before > 0 and after == [before, before]


@pytest.mark.parametrize("stage", [0, 1, 3])
def test_debug_getters_read_the_last_engine(ranks: Ranks, stage: int) -> None:
    assert ranks.run(f"{JOBS}:debug_getters", stage=stage) == [[True] * 12] * 2


@pytest.mark.parametrize("stages", [[3, 3], [1, 0]])
def test_zero_init_parameters_follow_training(ranks: Ranks, stages: list[int]) -> None:
    assert ranks.run(f"{JOBS}:zero_init_parameters", stages=stages) == [[True] * 6] * 2


@pytest.mark.parametrize("stage", [0, 1, 3])
def test_weights_of_another_shape_are_refused(ranks: Ranks, tmp_path: Path, stage: int) -> None:
    for output in ranks.run(f"{JOBS}:load_wrong_shape", stage=stage, folder=str(tmp_path)):
        assert "size mismatch for head.weight" in output and output.endswith("(5, 6)")


def test_reinitialize_resets_activation_checkpointing(ranks: Ranks) -> None:
    assert ranks.run(f"{JOBS}:recomputed", stages=[3, 3, 0]) == [[3, 0, 0]] * 2


@pytest.mark.parametrize(("stage", "more"), [(3, {}), (1, {}), (0, BF16)])
def test_weights_of_an_active_engine_are_refused(
    ranks: Ranks, stage: int, more: dict[str, Any]
) -> None:
    """Until it is destroyed, because its updates would be lost or overwrite trained weights."""
    for output in ranks.run(f"{JOBS}:submodule_of_replica", stage=stage, more=more):
        assert (
            "another engine still trains parameters of this model: destroy() that engine" in output
        )
    assert ranks.run(f"{JOBS}:submodule_of_replica", stage=0, more={}) == ["accepted"] * 2


def test_optimizer_has_loss_scale_of_its_engine(ranks: Ranks) -> None:
    assert ranks.run(f"{JOBS}:loss_scale_of_optimizer", stage=0) == [[16.0, 16.0, True]] * 2
