"""Checkpoints changed at random are loaded whole, or refused by every rank without a change."""

from pathlib import Path

import pytest

from training.ranks import SharedRanks

pytestmark = pytest.mark.engine


@pytest.mark.parametrize(
    "seed", [*range(20), *(pytest.param(seed, marks=pytest.mark.deep) for seed in range(20, 300))]
)
def test_a_changed_checkpoint_is_whole_or_refused(
    ranks_of: SharedRanks, tmp_path: Path, seed: int
) -> None:
    job = "engine_storage.jobs.mutations:outcome"
    found = ranks_of(2).run(job, seconds=45, folder=str(tmp_path), seed=seed)
    assert found == ["", ""]
