"""Output files are written atomically and keep mode, owner and links."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dsconfig.commands import writing
from dsconfig.project.errors import UsageError
from suite.limits import scaled

FIXABLE = '{"train_batch_size": 8, "zero_optimization": {"stage": 2,}, "steps_per_print": 10,}\n'
LIMITED = """
import os, resource, sys
room = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))
os.execv(sys.argv[2], sys.argv[2:])
"""
"""Runs a command that can write only small files."""
FLAGS = ("--fix", "--runtime", "transformers")


def run(*arguments: Any, room: int | None = None) -> "subprocess.CompletedProcess[str]":
    """Run a command; ``room`` limits the file size in bytes, like a full disk."""
    command = [sys.executable, "-m", "dsconfig", *map(str, arguments)]
    if room is not None:
        command = [sys.executable, "-c", LIMITED, str(room), *command]
    return subprocess.run(command, capture_output=True, text=True, timeout=scaled(60), check=False)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "ds.json"
    path.write_text(FIXABLE)
    return path


def is_fixed(path: Path) -> bool:
    return json.loads(path.read_text())["steps_per_print"] == 10


def test_fixed_file_keeps_mode_and_owner(config: Path) -> None:
    config.chmod(0o640)
    if os.geteuid() == 0:
        os.chown(config, 1234, 2345)
    before = config.stat()
    run("validate", *FLAGS, config)
    after = config.stat()
    assert is_fixed(config)
    assert (after.st_mode, after.st_uid, after.st_gid) == (
        before.st_mode,
        before.st_uid,
        before.st_gid,
    )


def test_hard_and_symbolic_links_are_kept(config: Path, tmp_path: Path) -> None:
    other, link = tmp_path / "other.json", tmp_path / "link.json"
    other.hardlink_to(config)
    link.symlink_to(config)
    run("validate", *FLAGS, link)
    assert link.is_symlink() and other.samefile(config) and is_fixed(other)


def test_concurrent_edit_is_not_overwritten(config: Path) -> None:
    was = config.read_bytes()
    config.write_text("mine")
    with pytest.raises(UsageError, match="in the meantime"):
        writing.rewrite(config, was, "yours")
    assert config.read_text() == "mine"


@pytest.mark.parametrize("step", ["open", "replace"])
def test_unreplaceable_file_is_written_in_place(
    step: str, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read-only directory, and a file mounted into a container."""
    before, ordinary = config.stat().st_ino, getattr(Path, step)

    def refused(path: Path, *arguments: Any, **more: Any) -> Any:
        if path != config:
            raise OSError(errno.EACCES if step == "open" else errno.EBUSY, "no")
        return ordinary(path, *arguments, **more)

    monkeypatch.setattr(Path, step, refused)
    writing.write(config, "new")
    monkeypatch.undo()
    assert config.read_text() == "new" and config.stat().st_ino == before
    assert list(config.parent.iterdir()) == [config]


def test_read_only_file_is_not_replaced(config: Path) -> None:
    """Even if the directory is writable."""
    config.chmod(0o444)
    config.parent.chmod(0o777)
    if os.geteuid() == 0:
        os.chown(config, 12345, 12345)
    for folder in config.parents:
        if folder.stat().st_uid == os.geteuid() and not folder.stat().st_mode & 0o001:
            folder.chmod(folder.stat().st_mode | 0o011)
    code = f"""
import os, pathlib
from dsconfig.commands import writing
if os.geteuid() == 0:
    os.setgid(12345)
    os.setuid(12345)  # root may write everything
try:
    writing.write(pathlib.Path({str(config)!r}), "new")
except writing.UsageError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "permission denied" in done.stdout, done.stderr
    assert config.read_text() == FIXABLE


@pytest.mark.parametrize("names", [1, 2])
def test_full_disk_keeps_old_file(names: int, config: Path, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text("the old plan")
    if names == 2:
        (tmp_path / "second").hardlink_to(plan)
    before = sorted(tmp_path.iterdir())
    clean = tmp_path / "clean.json"
    clean.write_text('{"train_batch_size": 8}')
    done = run("plan", clean, "--gpus", 2, "-o", plan, "--force", room=100)
    clean.unlink()
    assert done.returncode == 2 and f"-o {plan}" in " ".join(done.stderr.split())
    assert plan.read_text() == "the old plan"
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("names", [1, 2])
def test_failed_write_restores_old_bytes(
    names: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a"
    path.write_text("old and long")
    if names == 2:
        (tmp_path / "b").hardlink_to(path)

    def full(*_: object) -> None:
        monkeypatch.undo()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "ftruncate" if names == 2 else "fsync", full)
    with pytest.raises(UsageError, match="No space left"):
        writing.write(path, "new")
    assert path.read_text() == "old and long"
    assert len(list(tmp_path.iterdir())) == names


def test_writing_to_devices(config: Path) -> None:
    done = run("convert", config, "--to", "json", "-o", "/dev/stdout")
    assert json.loads(done.stdout)["train_batch_size"] == 8
    assert run("convert", config, "--to", "json", "-o", "/dev/full").returncode == 2


def test_new_file_respects_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        writing.write(tmp_path / "new", "text")
    finally:
        os.umask(before)
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize(
    "arguments",
    [
        ("init",),
        ("plan", "ds.json", "--gpus", "1"),
        ("diff", "--from-version=0.14.4", "--pin", "ds.json"),
    ],
    ids=["init", "plan", "diff"],
)
def test_dash_is_stdout(
    arguments: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("ds.json").write_text('{"train_batch_size": 8}')
    done = run(*arguments, "-o", "-")
    assert done.returncode == 0 and json.loads(done.stdout), done
    assert not Path("-").exists()
