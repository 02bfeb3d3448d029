"""Directories and files of a checkpoint, and how a new one replaces an old one.

[Note: atomic publication]
A checkpoint is written to a hidden directory beside its final path, under a name that no other
save uses (``.{tag}.{token}.writing``). When every rank has written and synced its files, rank 0
renames the directory to ``{tag}`` in one atomic step. A directory named after a tag is therefore
always complete, and nothing else ever has such a name. ``latest`` is replaced afterwards, also
atomically. Saving under an existing tag exchanges the two directories in one step if the system
supports it (Linux), and then removes the old one. A process killed at any moment leaves either the
old state or the new one, and possibly a hidden directory.

[Note: ownership of hidden directories]
Several jobs may save to one directory, such as a requeued job and a remnant of its first run. Each
hidden directory contains the file ``.owner``, which its save keeps locked (flock) until it ends in
any way. The next save removes a hidden directory only if its name has our form and it has such a
file, created under the running kernel, whose lock is free: then no process is writing there. A
directory of another machine may be in use and is kept; a warning names it.

[Note: symbolic links]
A link beside the checkpoints (``best -> ../best``) belongs to the user, and what it points to may
be the only copy. Removal never follows a link: a link does not count as a checkpoint, a save under
its name replaces the link itself, and links inside a removed directory are only unlinked.
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

from dsengine.checkpoints.group import CheckpointError

logger = getLogger("dsengine.checkpoint")

LATEST = "latest"
MANIFEST = "manifest.json"
STATE = "training_state.pt"
OWNER = ".owner"
MAX_TAG_BYTES = 200
"""Hidden names are longer by 27, and file systems allow 255."""
VISIBILITY_SECONDS = 5.0
"""How long a network file system may take to show one node what another has created."""
_HIDDEN = re.compile(r"\..+\.[0-9a-f]{16}\.(writing|removing)")
_ATTEMPTS = 100
"""Retries when other processes change the same path concurrently."""
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


def is_tag(text: str) -> bool:
    """Whether ``text`` is a valid tag: a visible file name that is not one of our own files."""
    if not text or text == LATEST or text.startswith(".") or text != text.strip():
        return False
    return text.isprintable() and not set("/\\") & set(text) and len(text.encode()) <= MAX_TAG_BYTES


class PendingCheckpoint:
    """One save of ``tag`` under ``root``, on rank 0, in a hidden directory until published.

    As a context manager it removes what was not published and releases the lock.
    """

    def __init__(self, root: Path, tag: str) -> None:
        self.root = root
        self.tag = tag
        self.directory = _hidden(root, tag, "writing")
        self._lock: int | None = None
        self._unpublished = False

    def create(self) -> Path:
        """Create the empty hidden directory; remove those that ended runs left behind."""
        self.root.mkdir(parents=True, exist_ok=True)
        for path in self.root.iterdir():
            if _HIDDEN.fullmatch(path.name) and path.is_dir() and not path.is_symlink():
                _remove_abandoned(path)
        self.directory.mkdir()
        self._unpublished = True
        self._lock = _lock_directory(self.directory)
        return self.directory

    def publish(self) -> Path:
        """Rename the written directory to its tag in one step."""
        sync_directory(self.directory)
        final = self.root / self.tag
        for _ in range(_ATTEMPTS):
            if self._rename(final):
                break
        else:
            raise CheckpointError(f"other processes keep replacing {final}")
        self._unpublished = False
        sync_directory(self.root)
        return final

    def _rename(self, final: Path) -> bool:
        """Return False if another save changed ``final`` concurrently."""
        removing = _hidden(self.root, self.tag, "removing")
        try:
            if not os.path.lexists(final):
                self.directory.rename(final)
            elif _exchange(self.directory, final):
                self.directory.rename(removing)
            else:
                _exchange_in_two_steps(self.directory, final, removing)
        except OSError as error:
            is_race = error.errno in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST)
            if not is_race or not self.directory.is_dir():
                raise
            return False
        discard(removing)
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._unpublished:
            with suppress(OSError):  # the next save removes what is left
                discard(self.directory)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _hidden(root: Path, tag: str, purpose: str) -> Path:
    return root / f".{tag}.{secrets.token_hex(8)}.{purpose}"


def _lock_directory(directory: Path) -> int:
    """Create a locked owner file in ``directory``; return the descriptor that holds the lock."""
    unlocked = directory / f"{OWNER}.new"
    descriptor = os.open(unlocked, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
    kernel = _kernel()
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # a file system without locks: never removed automatically
        kernel = None
    owner = {"owner": "dsengine", "host": socket.gethostname(), "kernel": kernel}
    os.write(descriptor, json.dumps(owner).encode())
    unlocked.rename(directory / OWNER)  # must not be visible before it is locked
    return descriptor


def _remove_abandoned(path: Path) -> None:
    """Remove a hidden directory if its owner has provably ended."""
    try:
        descriptor = os.open(path / OWNER, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return  # not ours, or not yet
    try:
        owner = json.loads(os.read(descriptor, 4096))
        if owner["kernel"] is None or owner["kernel"] != _kernel():
            logger.warning(
                "%s was left by a run on %s; delete it if that run is over", path, owner["host"]
            )
            return
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        discard(path)
    except (OSError, ValueError, KeyError, TypeError):
        return  # in use, or not ours
    finally:
        os.close(descriptor)


def _kernel() -> str:
    """Return an identifier of this boot of this machine."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return socket.gethostname()


def check_shared(directory: Path) -> None:
    """Wait until this rank sees the directory that rank 0 has created.

    Raises CheckpointError if it stays invisible: it is on another node's local disk, or the ranks
    use different directories.
    """
    end = time.monotonic() + VISIBILITY_SECONDS
    while not directory.is_dir():
        if time.monotonic() > end:
            raise CheckpointError(
                f"{socket.gethostname()} does not see {directory.parent}, where rank 0 is writing: "
                "use the same directory on all ranks, on storage shared by all nodes"
            )
        time.sleep(0.1)


def discard(path: Path) -> None:
    """Remove a directory that is not a checkpoint; the owner file is removed last.

    Of a link, only the link is removed.
    """
    with suppress(FileNotFoundError):
        for child in path.iterdir() if not path.is_symlink() else ():
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
    """Swap two names atomically; return False if the system or file system does not support it."""
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
    """Swap with two renames: in between the tag is missing, but never incomplete."""
    final.rename(removing)
    try:
        written.rename(final)
    except OSError:
        try:
            removing.rename(final)
        except OSError:  # another save has created it
            discard(removing)
        raise


def write_latest(root: Path, tag: str) -> None:
    """Point ``latest`` at ``tag``, atomically: the new file is written inside the checkpoint."""
    new = root / tag / f".{LATEST}"
    for _ in range(_ATTEMPTS):
        with suppress(FileNotFoundError):  # another save is replacing this tag
            write_synced(new, tag.encode())
            new.replace(root / LATEST)
            sync_directory(root)
            return
    raise CheckpointError(f"{root / tag} has been removed by another process")


def read_latest(root: Path) -> str | None:
    """Return the tag in ``latest``, or None without such a file."""
    with suppress(FileNotFoundError, NotADirectoryError):
        return (root / LATEST).read_text(encoding="utf-8").strip()
    return None


def checkpoint_path(root: Path, tag: str | None = None) -> Path:
    """Return the path of ``tag`` (default: that in ``latest``, otherwise ``root`` itself)."""
    chosen = tag if tag is not None else read_latest(root)
    return root if chosen is None else root / chosen


def write_synced(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync_directory(path: Path) -> None:
    """Make renames inside ``path`` survive a power failure, if the system supports it."""
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def is_same_checkpoint(first: Path, second: Path) -> bool:
    """Whether two paths are the same directory, directly or through links."""
    with suppress(OSError):
        return first == second or first.samefile(second)
    return False  # one of them does not exist


def remove_tag(root: Path, tag: str) -> None:
    """Remove a checkpoint without ever showing an incomplete one under its name."""
    removing = _hidden(root, tag, "removing")
    with suppress(FileNotFoundError):  # removed by another job
        (root / tag).rename(removing)
    discard(removing)
