"""A checkpoint takes its place in one step, or in two where the system has no exchange."""

import ctypes
import errno
from pathlib import Path
from typing import Any

import pytest

from dsengine.checkpoints import directory


class Library:
    """A C library whose ``renameat2`` fails with an error number."""

    def __init__(self, number: int) -> None:
        self.number = number

    def renameat2(self, *_: Any) -> int:
        ctypes.set_errno(self.number)
        return -1


def without_exchange(monkeypatch: pytest.MonkeyPatch, library: Any) -> None:
    monkeypatch.setattr(directory.ctypes, "CDLL", lambda *_, **__: library)


def saved(root: Path, text: str) -> Path:
    (directory.prepare(root, "step1") / "weights").write_text(text)
    return directory.publish(root, "step1")


@pytest.mark.parametrize(
    "library",
    [None, object(), *(Library(number) for number in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP))],
    ids=["exchange", "no such function", "EINVAL", "ENOSYS", "ENOTSUP"],
)
def test_a_tag_that_exists_is_replaced_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: Any
) -> None:
    saved(tmp_path, "old")
    if library is not None:
        without_exchange(monkeypatch, library)
    final = saved(tmp_path, "new")
    assert (final / "weights").read_text() == "new"
    assert [each.name for each in tmp_path.iterdir()] == ["step1"]


def test_another_failure_of_the_exchange_is_told_and_harms_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(tmp_path, "old")
    without_exchange(monkeypatch, Library(errno.EACCES))
    with pytest.raises(PermissionError):
        saved(tmp_path, "new")
    assert (tmp_path / "step1" / "weights").read_text() == "old"


def test_the_folders_above_a_checkpoint_need_not_exist(tmp_path: Path) -> None:
    assert saved(tmp_path / "runs" / "first", "new").is_dir()


def test_what_a_dead_run_left_may_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system may refuse to remove it; a new checkpoint does not need that."""
    leftover = directory.prepare(tmp_path, "step0")

    def refused(*_: Any, **__: Any) -> None:
        raise PermissionError(errno.EPERM, "no")

    monkeypatch.setattr(directory.shutil.os, "rmdir", refused)
    final = saved(tmp_path, "new")
    assert leftover.is_dir()
    assert (final / "weights").read_text() == "new"
