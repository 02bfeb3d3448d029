"""A run saved at one world size and stage goes on at any other as if it had never stopped."""

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
