"""A run saved at one world size and stage goes on at any other as if it had never stopped."""

from pathlib import Path

import pytest

from engine_storage.ranks import run_ranks

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[float]]:
    """Saved after 7 steps at 2 ranks, stage 3, while the run itself went on for 10 more."""
    base = tmp_path_factory.mktemp("resume")
    results = run_ranks("resume", 2, base / "run", save=True, stages=[3], dir=str(base / "saved"))
    return base, results[0]["3"]


@pytest.mark.parametrize("world_size", [1, 3, 4])
def test_ten_more_losses_equal_the_uninterrupted_run(
    uninterrupted: tuple[Path, list[float]], world_size: int
) -> None:
    base, expected = uninterrupted
    results = run_ranks(
        "resume",
        world_size,
        base / f"resumed{world_size}",
        save=False,
        stages=[0, 1, 2, 3],
        dir=str(base / "saved"),
    )
    for stage in "0123":
        assert results[0][stage] == pytest.approx(expected, rel=1e-6)
    assert results[0]["client"] == {"epoch": 2}
    assert results[0]["calls"] == 17
    assert results[0]["path"] == str(base / "saved" / "global_step7")
