"""Where states go into files, what is wrong with the place is said before a byte is written."""

from pathlib import Path

import pytest

from dsengine.tiers import files
from training.jobs import config
from training.ranks import Ranks


def test_a_directory_is_made_and_left_as_it_is(tmp_path: Path) -> None:
    assert files.unusable(tmp_path / "a" / "b", 2**20) == ""
    assert list((tmp_path / "a" / "b").iterdir()) == []


def test_what_cannot_hold_files_is_named(tmp_path: Path) -> None:
    there = tmp_path / "file"
    there.write_text("")
    assert "cannot create files: File exists" in files.unusable(there, 0)
    assert "cannot create files: Not a directory" in files.unusable(there / "below", 0)


def test_too_little_space_is_told_in_numbers(tmp_path: Path) -> None:
    assert "the ranks of this node need 1.05e+06 GiB" in files.unusable(tmp_path, 2**50)


@pytest.mark.engine
@pytest.mark.parametrize("block", ["offload_optimizer", "offload_param"])
def test_every_rank_hears_of_it(ranks: Ranks, tmp_path: Path, block: str) -> None:
    there = tmp_path / "file"
    there.write_text("")
    zero = {block: {"device": "nvme", "nvme_path": str(there)}}
    with pytest.raises(RuntimeError) as told:
        ranks.run("training.jobs:losses", config=config(3, zero=zero), steps=1)
    words = f"ValueError: zero_optimization.{block}.nvme_path: {there}: cannot create files"
    assert str(told.value).count(words) == 2
