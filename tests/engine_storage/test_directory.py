"""A checkpoint takes its place in one step, or in two where the system has no exchange."""

import ctypes
import errno
import json
import os
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
    with directory.PendingCheckpoint(root, "step1") as pending:
        (pending.create() / "weights").write_text(text)
        return pending.publish()


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
    leftover = dead(tmp_path)

    def refused(*_: Any, **__: Any) -> None:
        raise PermissionError(errno.EPERM, "no")

    monkeypatch.setattr(directory.shutil.os, "rmdir", refused)
    final = saved(tmp_path, "new")
    assert leftover.is_dir()
    assert (final / "weights").read_text() == "new"


def dead(root: Path) -> Path:
    """What is left of a save whose process has ended: nobody holds the lock."""
    pending = directory.PendingCheckpoint(root, "step0")
    (pending.create() / "weights").write_text("half")
    assert pending._lock is not None
    os.close(pending._lock)
    return pending.directory


def test_what_a_dead_run_left_is_removed(tmp_path: Path) -> None:
    leftover = dead(tmp_path)
    saved(tmp_path, "new")
    assert not leftover.exists()


def test_the_owner_goes_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it nobody could tell later what a removal that was cut off has left."""
    leftover = dead(tmp_path)
    monkeypatch.setattr(directory.shutil, "rmtree", lambda *_, **__: None)
    saved(tmp_path, "new")
    assert [each.name for each in leftover.iterdir()] == [directory.OWNER]


def test_what_another_job_writes_stays(tmp_path: Path) -> None:
    """A requeued job beside its zombie: both save, under one tag too."""
    with directory.PendingCheckpoint(tmp_path, "step1") as zombie:
        (zombie.create() / "weights").write_text("zombie")
        saved(tmp_path, "new")
        assert (zombie.directory / "weights").read_text() == "zombie"
        zombie.publish()
    assert (tmp_path / "step1" / "weights").read_text() == "zombie"
    assert [each.name for each in tmp_path.iterdir()] == ["step1"]


@pytest.mark.parametrize(
    "name", [".mine.writing", ".step0.0123456789abcdef.writing", "step0.0123456789abcdef.writing"]
)
def test_what_no_save_has_made_stays(tmp_path: Path, name: str) -> None:
    """A user's own directory, whatever its name."""
    (tmp_path / name).mkdir()
    saved(tmp_path, "new")
    assert (tmp_path / name).is_dir()


@pytest.mark.parametrize("kernel", ["another machine's", None])
def test_what_cannot_be_proved_dead_stays_and_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kernel: str | None
) -> None:
    leftover = dead(tmp_path)
    said = json.loads((leftover / directory.OWNER).read_text())
    (leftover / directory.OWNER).write_text(json.dumps(said | {"kernel": kernel, "host": "node7"}))
    saved(tmp_path, "new")
    assert leftover.is_dir()
    assert "node7" in caplog.text and leftover.name in caplog.text


def test_a_place_that_another_save_takes_meanwhile_is_tried_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_exchange(monkeypatch, object())
    rename = Path.rename

    def late(self: Path, target: Path) -> Path:
        """Between the look and the rename, another save has published."""
        if target == tmp_path / "step1" and not target.exists():
            monkeypatch.setattr(Path, "rename", rename)
            target.mkdir()
            (target / "weights").write_text("other")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", late)
    assert (saved(tmp_path, "mine") / "weights").read_text() == "mine"
    assert [each.name for each in tmp_path.iterdir()] == ["step1"]


@pytest.mark.parametrize(
    "tag", ["latest", " step1", "step1 ", "a/b", "..", ".x", "", "a\nb", "x" * 201]
)
def test_names_that_no_checkpoint_may_have(tag: str) -> None:
    assert not directory.is_tag(tag)


def test_names_that_a_checkpoint_may_have() -> None:
    assert all(directory.is_tag(tag) for tag in ("global_step10", "best model", "émile", "x" * 200))
