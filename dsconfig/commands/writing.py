"""Atomic file writes: a failed write leaves the old content.

[Note: two ways to replace a file] Usually the text is written to a temporary file in the same
directory, which then replaces the target. Files with hard links, or with an owner that cannot be
copied, are written in place instead, after the temporary file has shown that there is enough
space; on failure the old bytes are restored. So are files in read-only directories and files
mounted individually into a container.
"""

import errno
import os
import secrets
import stat
import sys
from contextlib import suppress
from pathlib import Path

from dsconfig.project.errors import UsageError, usage

_ONLY_IN_PLACE = (errno.EACCES, errno.EPERM, errno.EBUSY, errno.EROFS)
"""Errors of a read-only directory, or of a file mounted individually."""


def write(
    path: Path | None, text: str, option: str = "-o", encoding_errors: str = "backslashreplace"
) -> None:
    """Write the same bytes to a path or, for None or "-", to stdout: the text as UTF-8.

    A lone surrogate has no UTF-8 encoding; by default its escape is written, which is valid JSON.
    With ``surrogateescape``, arguments that are not UTF-8 are written as they were given.
    Raises UsageError if the path cannot be written.
    """
    data = text.encode("utf-8", encoding_errors)
    if path is None or str(path) == "-":
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        return
    with usage(f"{option} {path}"):
        _replace(path, data)


def rewrite(path: Path, was: bytes, text: str) -> None:
    """Replace a file whose content was ``was`` when it was read.

    Raises UsageError if it cannot be written or has changed since.
    """
    with usage(f"--fix {path}"):
        if path.read_bytes() != was:
            raise UsageError(f"--fix {path}: the file changed in the meantime; not written")
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
    if before is not None and not os.access(
        path, os.W_OK
    ):  # replacing it would need only a writable directory
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    try:
        replaced = _replace_via_temporary(path, data, before)
    except OSError as error:
        if before is None or error.errno not in _ONLY_IN_PLACE:
            raise
        replaced = False
    if not replaced:
        _write_in_place(path, data)


def _replace_via_temporary(path: Path, data: bytes, before: os.stat_result | None) -> bool:
    """Replace a file by a temporary one; return False if that would change owner or links."""
    temporary = path.with_name(f".{secrets.token_hex(8)}.writing")
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if before is not None and not _copy_owner_and_mode(temporary, before):
            return False
        temporary.replace(path)
        return True
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def _copy_owner_and_mode(temporary: Path, before: os.stat_result) -> bool:
    """Copy owner and mode; return False if that is not possible or the file has hard links."""
    if before.st_nlink > 1:
        return False
    if (before.st_uid, before.st_gid) != (temporary.stat().st_uid, temporary.stat().st_gid):
        try:
            os.chown(temporary, before.st_uid, before.st_gid)
        except (OSError, AttributeError):  # not permitted; or Windows, which has no owners
            return False
    temporary.chmod(stat.S_IMODE(before.st_mode))
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
