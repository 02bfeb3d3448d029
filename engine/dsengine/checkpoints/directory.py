"""Directories and files of a checkpoint, and how a new one takes its place.

[Note: how a checkpoint becomes visible]
A checkpoint is written into a hidden directory beside its final place, under a name that no
other save uses (``.{tag}.{token}.writing``). When every rank has written and synced its files,
rank 0 renames the directory to ``{tag}``: one atomic step. A directory with a tag's name is
therefore always whole, and nothing else ever has such a name. ``latest`` is replaced after that,
atomically too. Saving under a tag that exists exchanges the two directories in one step where the
system can (Linux), and the old one is then removed. A process killed at any moment leaves either
the old state or the new one, and perhaps a hidden directory.

[Note: whose a hidden directory is]
Several jobs may save into one directory: a requeued one beside its zombie. Each hidden directory
holds the file ``.owner``, which its save keeps locked (flock) until it ends in whatever way. The
next save removes a hidden directory only if it has our form of name and such a file, made under
the kernel that runs now, whose lock is free: then no living process writes there. What another
machine has left may be alive and stays; it is named in a warning.
"""

import ctypes
import errno
import fcntl
import json
import os
import re
import secrets
import shutil
import socket
import time
from contextlib import suppress
from logging import getLogger
from pathlib import Path
from typing import Self

from dsengine.checkpoints.errors import CheckpointError

logger = getLogger("dsengine.checkpoint")

LATEST = "latest"
MANIFEST = "manifest.json"
STATE = "training_state.pt"
OWNER = ".owner"
LONGEST_TAG = 200
"""Bytes; hidden names are longer by 27, and file systems end at 255."""
SIGHT_SECONDS = 5.0
"""How long a network file system may take to show one node what another has created."""
_HIDDEN = re.compile(r"\..+\.[0-9a-f]{16}\.(writing|removing)")
_CONTESTS = 100
"""How often a place is tried for that other processes take at the same time."""
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


def is_tag(text: str) -> bool:
    """Whether a checkpoint may have this name: a file's, visible, and no other file's of ours."""
    if not text or text == LATEST or text.startswith(".") or text != text.strip():
        return False
    return text.isprintable() and not set("/\\") & set(text) and len(text.encode()) <= LONGEST_TAG


class Writing:
    """One save of ``tag`` under ``root``, on rank 0: its hidden directory from begin to end.

    As a context it removes what was not published, and lets go of the lock.
    """

    def __init__(self, root: Path, tag: str) -> None:
        self.root = root
        self.tag = tag
        self.aside = _hidden(root, tag, "writing")
        self._lock: int | None = None
        self._unpublished = False

    def begin(self) -> Path:
        """Create the empty directory to write into; clear what dead runs left behind."""
        self.root.mkdir(parents=True, exist_ok=True)
        for path in self.root.iterdir():
            if _HIDDEN.fullmatch(path.name) and path.is_dir() and not path.is_symlink():
                _clear(path)
        self.aside.mkdir()
        self._unpublished = True
        self._lock = _own(self.aside)
        return self.aside

    def publish(self) -> Path:
        """Give the written directory its tag's name, in one step."""
        sync_directory(self.aside)
        final = self.root / self.tag
        for _ in range(_CONTESTS):
            if self._take_place(final):
                break
        else:
            raise CheckpointError(f"other processes keep replacing {final}")
        self._unpublished = False
        sync_directory(self.root)
        return final

    def _take_place(self, final: Path) -> bool:
        """False when another save changed ``final`` meanwhile."""
        removing = _hidden(self.root, self.tag, "removing")
        try:
            if not final.exists():
                self.aside.rename(final)
            elif _exchange(self.aside, final):
                self.aside.rename(removing)
            else:
                _exchange_in_two_steps(self.aside, final, removing)
        except OSError as error:
            contested = error.errno in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST)
            if not contested or not self.aside.is_dir():
                raise
            return False
        discard(removing)
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._unpublished:
            with suppress(OSError):  # what is left is hidden, and cleared by the next save
                discard(self.aside)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _hidden(root: Path, tag: str, purpose: str) -> Path:
    return root / f".{tag}.{secrets.token_hex(8)}.{purpose}"


def _own(directory: Path) -> int:
    """Put a locked owner's file into ``directory``; return the descriptor that holds the lock."""
    aside = directory / f"{OWNER}.new"
    descriptor = os.open(aside, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
    kernel = _kernel()
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # a file system without locks: nothing there can be proved dead
        kernel = None
    said = {"owner": "dsengine", "host": socket.gethostname(), "kernel": kernel}
    os.write(descriptor, json.dumps(said).encode())
    aside.rename(directory / OWNER)  # not to be seen before it is locked
    return descriptor


def _clear(path: Path) -> None:
    """Remove a hidden directory if its owner is provably dead."""
    try:
        descriptor = os.open(path / OWNER, os.O_RDONLY)
    except OSError:
        return  # not ours, or not yet
    try:
        said = json.loads(os.read(descriptor, 4096))
        if said["kernel"] is None or said["kernel"] != _kernel():
            logger.warning(
                "%s was left by a run on %s; delete it if that run is over", path, said["host"]
            )
            return
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        discard(path)
    except (OSError, ValueError, KeyError, TypeError):
        return  # alive, or not ours
    finally:
        os.close(descriptor)


def _kernel() -> str:
    """What tells this boot of this machine from every other."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return socket.gethostname()


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
    """Remove a directory that is not (or no longer) a checkpoint; the owner's file goes last."""
    with suppress(FileNotFoundError):
        for child in path.iterdir():
            if child.name != OWNER:
                _remove(child)
        _remove(path)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


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


def _exchange_in_two_steps(written: Path, final: Path, removing: Path) -> None:
    """In between, the tag is missing but nothing half-written is visible."""
    final.rename(removing)
    try:
        written.rename(final)
    except OSError:
        try:
            removing.rename(final)
        except OSError:  # another save has taken the place
            discard(removing)
        raise


def write_latest(root: Path, tag: str) -> None:
    """Point ``latest`` at ``tag``, atomically: the new file is written inside the checkpoint."""
    aside = root / tag / f".{LATEST}"
    for _ in range(_CONTESTS):
        with suppress(FileNotFoundError):  # another save takes this tag's place just now
            write_synced(aside, tag.encode())
            aside.replace(root / LATEST)
            sync_directory(root)
            return
    raise CheckpointError(f"{root / tag} has been removed by another process")


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
    removing = _hidden(root, tag, "removing")
    with suppress(FileNotFoundError):  # another job was faster
        (root / tag).rename(removing)
    discard(removing)
