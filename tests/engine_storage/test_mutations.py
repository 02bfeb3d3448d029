"""Randomly changed checkpoints load correctly or are refused by every rank."""

from pathlib import Path

import pytest

from training.ranks import SharedRanks

pytestmark = pytest.mark.engine


@pytest.mark.parametrize(
    "seed",
    [
        *range(8),
        *(pytest.param(seed, marks=pytest.mark.long) for seed in range(8, 20)),
        *(pytest.param(seed, marks=pytest.mark.deep) for seed in range(20, 300)),
    ],
)
def test_changed_checkpoint_loads_correctly_or_is_refused(
    ranks_of: SharedRanks, tmp_path: Path, seed: int
) -> None:
    job = "engine_storage.jobs.mutations:outcome"
    errors = ranks_of(2).run(job, seconds=45, folder=str(tmp_path), seed=seed)
    assert errors == ["", ""]
