"""A run saved at one world size and stage goes on at any other as if it had never stopped."""

from pathlib import Path
from typing import Any

import pytest

from engine_storage.ranks import run_ranks

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def engine_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    base = tmp_path_factory.mktemp("engine")
    return base, run_ranks(
        "engine_run", 2, base / "run", save=True, init=[0, 1, 2, 3], dir=str(base / "saved")
    )[0]


@pytest.mark.parametrize("world_size", [1, 3, 4])
def test_an_engine_goes_on_at_any_world_size_and_stage(
    engine_run: tuple[Path, dict[str, Any]], world_size: int
) -> None:
    base, first = engine_run
    directory = str(base / "saved")
    said = run_ranks(
        "engine_run",
        world_size,
        base / f"at{world_size}",
        save=False,
        stages=[0, 1, 2, 3],
        dir=directory,
    )[0]
    for stage in "0123":
        assert said[stage] == pytest.approx(first["losses"], rel=1e-6)
    assert said["client"] == {"epoch": 2}
    assert said["path"] == f"{directory}/global_step7"
    assert said["steps"] == 17
    assert said["calls"] == 17


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_a_model_built_under_zero_init_trains_alike(
    engine_run: tuple[Path, dict[str, Any]], stage: int
) -> None:
    plain, under_init = engine_run[1][f"init {stage}"]
    assert under_init == plain


def test_parameters_of_an_engine_can_be_gathered_and_changed(
    engine_run: tuple[Path, dict[str, Any]],
) -> None:
    assert engine_run[1]["gathered"] == [36, 12]
    assert engine_run[1]["changed"]
