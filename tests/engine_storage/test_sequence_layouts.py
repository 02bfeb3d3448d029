"""Checkpoints of a run that divides samples along the sequence load in any other layout."""

from itertools import pairwise
from pathlib import Path

import pytest

from training.ranks import Ranks, SharedRanks

pytestmark = [pytest.mark.live, pytest.mark.engine]
JOB = "engine_storage.jobs.sequence_layouts:continued"


def test_weights_and_moments_are_bit_equal_in_another_layout(
    ranks_of: SharedRanks, tmp_path: Path
) -> None:
    """Two ranks at stage 3, one rank, two ranks at stage 1, two x two ranks at stage 2."""
    first, second, third = (str(tmp_path / name) for name in ("first", "second", "third"))
    runs = [
        ranks_of(2).run(JOB, stage=3, ranks=2, save=first),
        ranks_of(1).run(JOB, stage=0, ranks=1, load=first, save=second),
        ranks_of(2).run(JOB, stage=1, ranks=2, load=second, save=third),
        ranks_of(4).run(JOB, stage=2, ranks=2, load=third),
    ]
    for saved, loaded in pairwise(runs):
        assert all(len(digests) == 3 for digests in saved[0]["after"].values())
        for rank in loaded:
            assert rank["before"] == saved[0]["after"]
        assert loaded[0]["after"] != loaded[0]["before"]


def test_checkpoint_of_another_model_is_refused_on_every_rank(ranks: Ranks, tmp_path: Path) -> None:
    ranks.run(JOB, stage=3, ranks=2, save=str(tmp_path))
    job = "engine_storage.jobs.sequence_layouts:refused"
    for message, is_unchanged in ranks.run(job, directory=str(tmp_path), kind="one key head"):
        assert "k_proj.weight" in message
        assert is_unchanged
