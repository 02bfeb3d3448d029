"""A run saved at one world size and stage goes on at any other as if it had never stopped."""

from pathlib import Path
from typing import Any

import pytest

from training.ranks import Ranks, SharedRanks

pytestmark = pytest.mark.engine


JOBS = "engine_storage.jobs.engine_run"


@pytest.fixture(scope="module")
def saved(
    ranks_of: SharedRanks, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, dict[str, Any]]:
    """Where two ranks have saved a run, and what they said."""
    directory = str(tmp_path_factory.mktemp("engine") / "saved")
    return directory, ranks_of(2).run(f"{JOBS}:saved", directory=directory)[0]


@pytest.mark.parametrize("world_size", [1, 3, 4])
def test_an_engine_goes_on_at_any_world_size_and_stage(
    ranks_of: SharedRanks, saved: tuple[str, dict[str, Any]], world_size: int
) -> None:
    directory, first = saved
    for stage in (0, 1, 2, 3):
        said = ranks_of(world_size).run(f"{JOBS}:resumed", directory=directory, stage=stage)[0]
        assert said["losses"] == pytest.approx(first["losses"], rel=1e-6)
        assert said["client"] == {"epoch": 2}
        assert said["path"] == f"{directory}/global_step7"
        assert said["steps"] == 17
        assert said["calls"] == 17


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_a_model_built_under_zero_init_trains_alike(ranks: Ranks, stage: int) -> None:
    plain, under_init = ranks.run(f"{JOBS}:under_init", stage=stage)[0]
    assert under_init == plain


def test_parameters_of_an_engine_can_be_gathered_and_changed(
    saved: tuple[str, dict[str, Any]],
) -> None:
    assert saved[1]["gathered"] == [36, 12]
    assert saved[1]["changed"]


@pytest.mark.parametrize("stage", [0, 3])
def test_what_follows_an_asynchronous_save_waits_for_it(
    ranks: Ranks, tmp_path: Path, stage: int
) -> None:
    """Both would use one process group, and a load would miss what is not there yet."""
    job = f"{JOBS}:files_while_saving"
    assert ranks.run(job, directory=str(tmp_path), stage=stage) == [[True, True]] * 2
    assert (tmp_path / "latest").read_text() == "third"
