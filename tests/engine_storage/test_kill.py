"""Killing a rank at any moment of a save keeps the newest complete checkpoint."""

import json
from pathlib import Path

import pytest

from engine_storage.scripts import run_script

pytestmark = pytest.mark.engine


@pytest.mark.long
@pytest.mark.parametrize(
    "seed", ["0", *(pytest.param(str(seed), marks=pytest.mark.deep) for seed in range(1, 31))]
)
def test_newest_complete_checkpoint_loads_after_kills(tmp_path: Path, seed: str) -> None:
    run = run_script("kill", str(tmp_path), "10", seed, seconds=150)
    rounds = [json.loads(line) for line in run.stdout.splitlines()]
    assert len(rounds) == 10, run.stderr[-3000:]
    assert [entry for entry in rounds if not entry["complete"]] == []
    # The surviving rank raised our error instead of waiting forever.
    assert {entry["survivor"] for entry in rounds} == {3}


@pytest.mark.long
@pytest.mark.parametrize(
    "seed", ["0", *(pytest.param(str(seed), marks=pytest.mark.deep) for seed in range(1, 10))]
)
def test_two_jobs_killed_while_saving_to_one_directory_leave_complete_checkpoints(
    tmp_path: Path, seed: str
) -> None:
    """Ten kills per seed, so that an interrupted run can resume with the next seed."""
    run = run_script("kill_two_jobs", str(tmp_path), "10", seed, seconds=240)
    rounds = [json.loads(line) for line in run.stdout.splitlines()]
    assert sum(entry["kills"] for entry in rounds) == 10, run.stderr[-3000:]
    assert [entry["broken"] for entry in rounds if entry["broken"]] == []
    # All processes were running at the first kill, and checkpoints were read.
    assert {entry["alive"] for entry in rounds} == {4}
    assert all(entry["seen"] for entry in rounds)
