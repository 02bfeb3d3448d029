"""Directories and files of a checkpoint, and how a new one takes its place.

[Note: how a checkpoint becomes visible]
A checkpoint is written into ``.{tag}.writing`` beside its final place. When every rank has
written and synced its files, rank 0 renames the directory to ``{tag}``: one atomic step. A
directory with a tag's name is therefore always whole, and nothing else ever has such a name.
``latest`` is replaced after that, atomically too. Saving under a tag that exists exchanges the
two directories in one step where the system can (Linux), and the old one is then removed. A
process killed at any moment leaves either the old state or the new one, and perhaps a hidden
directory, which the next save clears away.
"""

import ctypes
import errno
import os
import shutil
import socket
import time
from contextlib import suppress
from pathlib import Path

from dsengine.checkpoints.errors import CheckpointError

LATEST = "latest"
MANIFEST = "manifest.json"
STATE = "training_state.pt"
SIGHT_SECONDS = 5.0
"""How long a network file system may take to show one node what another has created."""
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


def writing_directory(root: Path, tag: str) -> Path:
    return root / f".{tag}.writing"


def prepare(root: Path, tag: str) -> Path:
    """Create an empty directory to write ``tag`` into; clear what dead runs left behind."""
    root.mkdir(parents=True, exist_ok=True)
    for pattern in (".*.writing", ".*.removing", f".{LATEST}.*"):
        for leftover in root.glob(pattern):
            discard(leftover)
    target = writing_directory(root, tag)
    target.mkdir()
    return target


def check_shared(aside: Path) -> None:
    """Wait until this rank sees the directory that rank 0 has prepared.

    Raises CheckpointError when it does not come into sight: it is another node's own disk, or
    the ranks name different directories.
    """
    end = time.monotonic() + SIGHT_SECONDS
    while not aside.is_dir():
        if time.monotonic() > end:
            raise CheckpointError(
                f"{socket.gethostname()} does not see {aside.parent}, where rank 0 has begun to "
                "write: name one directory on all ranks, on storage that all nodes share"
            )
        time.sleep(0.1)


def discard(path: Path) -> None:
    """Remove a file or directory that is not (or no longer) a checkpoint."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def publish(root: Path, tag: str) -> Path:
    """Give the written directory its tag's name, in one step."""
    written, final = writing_directory(root, tag), root / tag
    sync_directory(written)
    if final.exists():
        _replace_directory(written, final)
    else:
        written.rename(final)
    sync_directory(root)
    return final


def _replace_directory(written: Path, final: Path) -> None:
    removing = final.with_name(f".{final.name}.removing")
    if _exchange(written, final):
        written.rename(removing)
    else:  # two steps: in between, the tag is missing but nothing half-written is visible
        final.rename(removing)
        written.rename(final)
    discard(removing)


def _exchange(first: Path, second: Path) -> bool:
    """Swap two names atomically; False where the system or filesystem cannot."""
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    code = renameat2(
        _AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), _RENAME_EXCHANGE
    )
    if code == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
        return False
    raise OSError(number, os.strerror(number), str(first))


def write_latest(root: Path, tag: str) -> None:
    """Point ``latest`` at ``tag``, atomically."""
    aside = root / f".{LATEST}.new"
    write_synced(aside, tag.encode())
    aside.replace(root / LATEST)
    sync_directory(root)


def read_latest(root: Path) -> str | None:
    """Return the tag that ``latest`` names, or None when there is no such file."""
    with suppress(FileNotFoundError, NotADirectoryError):
        return (root / LATEST).read_text(encoding="utf-8").strip()
    return None


def write_synced(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync_directory(path: Path) -> None:
    """Make renames inside ``path`` survive a power failure, where the system can."""
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def remove_tag(root: Path, tag: str) -> None:
    """Remove a checkpoint so that no moment shows a part of it under its name."""
    removing = root / f".{tag}.removing"
    (root / tag).rename(removing)
    discard(removing)
