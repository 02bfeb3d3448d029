"""Atomic publication of checkpoints, and removal of abandoned ones."""

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
def test_existing_tag_is_replaced_completely(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: Any
) -> None:
    saved(tmp_path, "old")
    if library is not None:
        without_exchange(monkeypatch, library)
    final = saved(tmp_path, "new")
    assert (final / "weights").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["step1"]


def test_failed_exchange_raises_and_keeps_old_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(tmp_path, "old")
    without_exchange(monkeypatch, Library(errno.EACCES))
    with pytest.raises(PermissionError):
        saved(tmp_path, "new")
    assert (tmp_path / "step1" / "weights").read_text() == "old"


def test_parent_folders_are_created(tmp_path: Path) -> None:
    assert saved(tmp_path / "runs" / "first", "new").is_dir()


def test_abandoned_directory_that_cannot_be_removed_is_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system may refuse to remove it."""
    leftover = abandoned(tmp_path)

    def refused(*_: Any, **__: Any) -> None:
        raise PermissionError(errno.EPERM, "no")

    monkeypatch.setattr(os, "rmdir", refused)
    final = saved(tmp_path, "new")
    assert leftover.is_dir()
    assert (final / "weights").read_text() == "new"


def abandoned(root: Path) -> Path:
    """Return the directory of a save whose process has ended, with a free lock."""
    pending = directory.PendingCheckpoint(root, "step0")
    (pending.create() / "weights").write_text("half")
    assert pending._lock is not None
    os.close(pending._lock)
    return pending.directory


def test_abandoned_directory_is_removed(tmp_path: Path) -> None:
    leftover = abandoned(tmp_path)
    saved(tmp_path, "new")
    assert not leftover.exists()


def test_owner_file_is_removed_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It identifies the remains of an interrupted removal."""
    leftover = abandoned(tmp_path)
    monkeypatch.setattr(directory.shutil, "rmtree", lambda *_, **__: None)
    saved(tmp_path, "new")
    assert [path.name for path in leftover.iterdir()] == [directory.OWNER]


def test_directory_of_a_running_save_is_kept(tmp_path: Path) -> None:
    """A requeued job and a remnant of its first run save under the same tag."""
    with directory.PendingCheckpoint(tmp_path, "step1") as other:
        (other.create() / "weights").write_text("other")
        saved(tmp_path, "new")
        assert (other.directory / "weights").read_text() == "other"
        other.publish()
    assert (tmp_path / "step1" / "weights").read_text() == "other"
    assert [path.name for path in tmp_path.iterdir()] == ["step1"]


@pytest.mark.parametrize(
    "name", [".mine.writing", ".step0.0123456789abcdef.writing", "step0.0123456789abcdef.writing"]
)
def test_unrelated_directories_are_kept(tmp_path: Path, name: str) -> None:
    """A user's directory with a similar name."""
    (tmp_path / name).mkdir()
    saved(tmp_path, "new")
    assert (tmp_path / name).is_dir()


@pytest.mark.parametrize("kernel", ["another machine's", None])
def test_directory_of_another_machine_is_kept_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kernel: str | None
) -> None:
    leftover = abandoned(tmp_path)
    owner = json.loads((leftover / directory.OWNER).read_text())
    (leftover / directory.OWNER).write_text(json.dumps(owner | {"kernel": kernel, "host": "node7"}))
    saved(tmp_path, "new")
    assert leftover.is_dir()
    assert "node7" in caplog.text and leftover.name in caplog.text


def test_publish_retries_after_concurrent_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_exchange(monkeypatch, object())
    rename = Path.rename

    def late(self: Path, target: Path) -> Path:
        """Simulate a save that publishes between check and rename."""
        if target == tmp_path / "step1" and not target.exists():
            monkeypatch.setattr(Path, "rename", rename)
            target.mkdir()
            (target / "weights").write_text("other")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", late)
    assert (saved(tmp_path, "mine") / "weights").read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["step1"]


@pytest.mark.parametrize(
    "tag", ["latest", " step1", "step1 ", "a/b", "..", ".x", "", "a\nb", "x" * 201]
)
def test_invalid_tags(tag: str) -> None:
    assert not directory.is_tag(tag)


def test_valid_tags() -> None:
    assert all(directory.is_tag(tag) for tag in ("global_step10", "best model", "émile", "x" * 200))
