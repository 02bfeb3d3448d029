"""Modules of engines are copied and pickled as ordinary ones, or explain how to gather them."""

import pytest

from sweeps import sweep
from training.jobs import config
from training.ranks import Ranks

pytestmark = pytest.mark.engine
JOBS = "training.copy_jobs"


@sweep(1, bf16=[False, True], stage=[0, 1, 2])
def test_deepcopy_is_an_ordinary_module(ranks: Ranks, stage: int, bf16: bool) -> None:
    settings = config(stage, bf16={"enabled": bf16})
    assert ranks.run(f"{JOBS}:copied", settings=settings)[0] == (True, True, True)


@sweep(1, bf16=[False, True], stage=range(4))
def test_saved_module_is_an_ordinary_one(ranks: Ranks, stage: int, bf16: bool) -> None:
    settings = config(stage, bf16={"enabled": bf16})
    assert ranks.run(f"{JOBS}:pickled", settings=settings)[0] == ("Tied", True, True)


@sweep(1, axis=["tensor", "packed", "expert"], stage=range(4))
def test_parts_of_a_model_are_copied_gathered(ranks: Ranks, stage: int, axis: str) -> None:
    for result in ranks.run(f"{JOBS}:copies_of_divided_model", axis=axis, stage=stage):
        assert len(result["errors"]) == 3
        for error in result["errors"]:
            assert "zero.GatheredParameters(list(model.parameters()))" in error
        assert result["differences"] == pytest.approx([0, 0], abs=1e-5) and result["plain"]


@pytest.mark.parametrize("stage", [0, 2])
def test_copy_of_a_model_with_divided_samples_runs_on_one_rank(ranks: Ranks, stage: int) -> None:
    first, _ = ranks.run(f"{JOBS}:copies_of_divided_samples", stage=stage)
    assert first == (0.0, "OwnConfig")


@sweep(1, axis=["tensor", "packed", "expert"], stage=range(3))
def test_cloned_state_dict_has_full_parameters(ranks: Ranks, stage: int, axis: str) -> None:
    """accelerate clones it on all ranks, and the Trainer saves it on the first."""
    assert ranks.run(f"{JOBS}:cloned_state", axis=axis, stage=stage) == [True, True]
