"""A rank killed at any moment of a save never costs the newest complete checkpoint."""

import json
from pathlib import Path

import pytest

from engine_storage.scripts import run_script

pytestmark = pytest.mark.engine


@pytest.mark.parametrize(
    "seed", ["0", *(pytest.param(str(seed), marks=pytest.mark.deep) for seed in range(1, 31))]
)
def test_the_newest_complete_checkpoint_loads_after_ten_kills(tmp_path: Path, seed: str) -> None:
    run = run_script("kill", str(tmp_path), "10", seed, seconds=150)
    rounds = [json.loads(line) for line in run.stdout.splitlines()]
    assert len(rounds) == 10, run.stderr[-3000:]
    assert [each for each in rounds if not each["whole"]] == []
    # The surviving rank was told, by an error of ours, instead of waiting for ever.
    assert {each["survivor"] for each in rounds} == {3}


@pytest.mark.parametrize(
    "seed", ["0", *(pytest.param(str(seed), marks=pytest.mark.deep) for seed in range(1, 10))]
)
def test_two_jobs_killed_while_saving_into_one_directory_leave_whole_checkpoints(
    tmp_path: Path, seed: str
) -> None:
    """Ten kills for each seed, so what is stopped goes on with the next."""
    run = run_script("kill_two_jobs", str(tmp_path), "10", seed, seconds=240)
    rounds = [json.loads(line) for line in run.stdout.splitlines()]
    assert sum(each["kills"] for each in rounds) == 10, run.stderr[-3000:]
    assert [each["broken"] for each in rounds if each["broken"]] == []
    # All were at work when the first was killed, and there was something to read.
    assert {each["alive"] for each in rounds} == {4}
    assert all(each["seen"] for each in rounds)
