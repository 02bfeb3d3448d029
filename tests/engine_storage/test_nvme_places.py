"""An unusable nvme_path is reported before anything is written."""

from pathlib import Path

import pytest

from dsengine.tiers import files
from training.jobs import config
from training.ranks import Ranks


def test_directory_is_created_and_left_empty(tmp_path: Path) -> None:
    assert files.unusable(tmp_path / "a" / "b", 2**20) == ""
    assert list((tmp_path / "a" / "b").iterdir()) == []


def test_path_without_files_is_reported(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    assert "cannot create files: File exists" in files.unusable(file, 0)
    assert "cannot create files: Not a directory" in files.unusable(file / "below", 0)


def test_insufficient_space_is_reported(tmp_path: Path) -> None:
    assert "the ranks of this node need 1.05e+06 GiB" in files.unusable(tmp_path, 2**50)


@pytest.mark.engine
@pytest.mark.parametrize("block", ["offload_optimizer", "offload_param"])
def test_every_rank_raises_the_error(ranks: Ranks, tmp_path: Path, block: str) -> None:
    file = tmp_path / "file"
    file.write_text("")
    zero = {block: {"device": "nvme", "nvme_path": str(file)}}
    with pytest.raises(RuntimeError) as error:
        ranks.run("training.jobs:losses", config=config(3, zero=zero), steps=1)
    message = f"ValueError: zero_optimization.{block}.nvme_path: {file}: cannot create files"
    assert str(error.value).count(message) == 2
