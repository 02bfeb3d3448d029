"""A load beside a job that removes the chosen checkpoint uses the newest one, on all ranks."""

from pathlib import Path

import pytest

from sweeps import sweep
from training.ranks import Ranks

pytestmark = pytest.mark.engine
JOB = "engine_storage.jobs.vanishing:outcome"


@sweep(1, moment=["chosen", "opened", "checked"], by_replacing={"new tag": False, "same tag": True})
def test_removed_checkpoint_is_replaced_by_the_newest(
    ranks: Ranks, tmp_path: Path, moment: str, by_replacing: bool
) -> None:
    results = ranks.run(JOB, folder=str(tmp_path), moment=moment, by_replacing=by_replacing)
    tag = "global_step2" if by_replacing else "global_step3"
    assert results == [(str(tmp_path / tag), 3, [3.0])] * 2


def test_older_complete_checkpoint_is_loaded_if_latest_names_a_removed_one(
    ranks: Ranks, tmp_path: Path
) -> None:
    moment = "latest is not updated"
    results = ranks.run(JOB, folder=str(tmp_path), moment=moment, by_replacing=False)
    assert results == [(str(tmp_path / "global_step1"), 1, [1.0])] * 2
