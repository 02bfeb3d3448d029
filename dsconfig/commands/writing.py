"""Files that commands write: whole or not at all, and otherwise what they were.

[Note: two ways to replace a file] Usually the text goes to a file beside, which then takes the
name: whatever fails before leaves the old one. A file with several names (hard links), or whose
owner cannot be given to another file, would become a different file that way. It is written in
place, after the file beside has shown that there is room, and gets its old bytes back on failure.
So is a file whose folder takes no other, and one that a container has mounted alone.
"""

import errno
import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path

import typer

from dsconfig.commands.errors import UsageError, usage

_ONLY_IN_PLACE = (errno.EACCES, errno.EPERM, errno.EBUSY, errno.EROFS)
"""How a folder says that it takes no other file, and a file mounted alone that it stays."""


def write(path: Path | None, text: str, option: str = "-o") -> None:
    """Write a text as UTF-8, to standard output where there is no path, or it is "-".

    Raises UsageError where the path cannot be written.
    """
    if path is None or str(path) == "-":
        typer.echo(text, nl=False)
        return
    # A lone surrogate has no UTF-8; as an escape it is at least valid JSON.
    with usage(f"{option} {path}"):
        _replace(path, text.encode("utf-8", "backslashreplace"))


def rewrite(path: Path, was: bytes, text: str) -> None:
    """Replace a file that held ``was`` when it was read.

    Raises UsageError where it cannot be written, or holds something else by now.
    """
    with usage(f"--fix {path}"):
        if path.read_bytes() != was:
            raise UsageError(f"--fix {path}: somebody changed it meanwhile; nothing is written")
        _replace(path, text.encode("utf-8"))


def _replace(path: Path, data: bytes) -> None:
    try:
        before = path.stat()
    except FileNotFoundError:
        before = None
    if before is not None and not stat.S_ISREG(before.st_mode):
        path.write_bytes(data)  # a terminal, a pipe
        return
    path = path.resolve()
    if before is not None and not os.access(path, os.W_OK):  # a folder would let it be replaced
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    try:
        replaced = _replace_by_another(path, data, before)
    except OSError as error:
        if before is None or error.errno not in _ONLY_IN_PLACE:
            raise
        replaced = False
    if not replaced:
        _write_in_place(path, data)


def _replace_by_another(path: Path, data: bytes, before: os.stat_result | None) -> bool:
    """Whether a file beside, which has shown that there is room, could take the name."""
    beside = path.with_name(f".{secrets.token_hex(8)}.writing")
    try:
        with beside.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if before is not None and not _becomes(beside, before):
            return False
        beside.replace(path)
        return True
    finally:
        with suppress(OSError):
            beside.unlink(missing_ok=True)


def _becomes(beside: Path, before: os.stat_result) -> bool:
    """Give a file the owner and mode of another; False where it cannot stand for that."""
    if before.st_nlink > 1:
        return False
    if (before.st_uid, before.st_gid) != (beside.stat().st_uid, beside.stat().st_gid):
        try:
            os.chown(beside, before.st_uid, before.st_gid)
        except (OSError, AttributeError):  # another's file; or Windows, which has no owners
            return False
    beside.chmod(stat.S_IMODE(before.st_mode))
    return True


def _write_in_place(path: Path, data: bytes) -> None:
    with path.open("r+b", buffering=0) as file:
        old = file.read()
        try:
            _put(file.fileno(), data)
        except BaseException:
            with suppress(OSError):
                _put(file.fileno(), old)
            raise


def _put(file: int, data: bytes) -> None:
    os.lseek(file, 0, os.SEEK_SET)
    left = memoryview(data)
    while left:
        left = left[os.write(file, left) :]
    os.ftruncate(file, len(data))
    os.fsync(file)
