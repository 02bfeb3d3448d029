"""A run saved at one world size and stage resumes at any other with equal losses."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from dsengine.checkpoints import Checkpointer, TrainingState
from dsengine.checkpoints.manifest import read_manifest
from training.ranks import Ranks, SharedRanks

pytestmark = pytest.mark.engine


JOBS = "engine_storage.jobs.engine_run"


@pytest.fixture(scope="module")
def saved(
    ranks_of: SharedRanks, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, dict[str, Any]]:
    """Return the directory of a run saved on two ranks, and its results."""
    directory = str(tmp_path_factory.mktemp("engine") / "saved")
    return directory, ranks_of(2).run(f"{JOBS}:saved", directory=directory)[0]


@pytest.mark.parametrize("world_size", [1, 3, pytest.param(4, marks=pytest.mark.long)])
def test_engine_resumes_at_any_world_size_and_stage(
    ranks_of: SharedRanks, saved: tuple[str, dict[str, Any]], world_size: int
) -> None:
    directory, first = saved
    for stage in (0, 1, 2, 3):
        result = ranks_of(world_size).run(f"{JOBS}:resumed", directory=directory, stage=stage)[0]
        assert result["losses"] == pytest.approx(first["losses"], rel=1e-6)
        assert result["client"]["epoch"] == 2
        assert result["path"] == f"{directory}/global_step7"
        assert result["steps"] == 17
        assert result["calls"] == 17


def test_manifest_has_axes_and_coordinates(saved: tuple[str, dict[str, Any]]) -> None:
    description = read_manifest(Path(saved[0]) / "global_step7").description
    assert list(description["axes"]) == ["pipeline", "replicate", "shard", "sequence", "tensor"]
    first, second = description["coordinates"]
    assert first == [0] * 5 and sorted(second) == [0, 0, 0, 0, 1]


def test_checkpoint_without_axes_can_be_loaded() -> None:
    model = nn.Linear(4, 2)
    folder = Path(__file__).with_name("checkpoint_1")
    assert "axes" not in read_manifest(folder / "global_step1").description
    Checkpointer().load(TrainingState(module=model), folder, "global_step1")
    expected = [[-0.1037, 0.1682, -0.5115, -0.4680], [-0.2926, 0.0341, -0.1099, 0.2964]]
    assert torch.allclose(model.weight, torch.tensor(expected), atol=1e-4)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_model_built_under_zero_init_trains_equally(ranks: Ranks, stage: int) -> None:
    plain, under_init = ranks.run(f"{JOBS}:under_init", stage=stage)[0]
    assert under_init == plain


def test_parameters_can_be_gathered_and_changed(
    saved: tuple[str, dict[str, Any]],
) -> None:
    assert saved[1]["gathered"] == [36, 12]
    assert saved[1]["changed"]


@pytest.mark.parametrize("stage", [0, 3])
def test_operations_after_asynchronous_save_wait_for_it(
    ranks: Ranks, tmp_path: Path, stage: int
) -> None:
    """They share a process group, and a load needs the complete checkpoint."""
    job = f"{JOBS}:files_while_saving"
    assert ranks.run(job, directory=str(tmp_path), stage=stage) == [[True, True]] * 2
    assert (tmp_path / "latest").read_text() == "third"
