"""Tiles on NVMe: one file per tile, aligned buffers, reads and writes in threads.

``os.preadv`` and ``os.pwritev`` release the interpreter; with buffers and offsets aligned to the
page size they go past the page cache (O_DIRECT) where the file system allows it.
"""

import mmap
import os
import shutil
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryFile

import torch
from torch import Tensor

GIB = 2**30
ALIGNMENT = 4096
"""Bytes; what O_DIRECT asks of addresses, offsets and lengths."""


def aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


class Buffer:
    """Page-aligned host memory, seen as bytes and as fp32 elements."""

    def __init__(self, size: int) -> None:
        self._memory = mmap.mmap(-1, max(aligned(size), ALIGNMENT))
        self.bytes = memoryview(self._memory)
        self.elements: Tensor = torch.frombuffer(self._memory, dtype=torch.float32)


class TileFile:
    """A file of fixed size, without a name: it vanishes with the process, however that ends.

    Raises OSError, before anything is written, when space is short.
    """

    def __init__(self, path: Path, size: int) -> None:
        self.size = aligned(size)
        flags = os.O_RDWR | os.O_CREAT
        try:
            self.descriptor = os.open(path, flags | getattr(os, "O_DIRECT", 0), 0o600)
        except OSError:  # tmpfs and some network file systems know no direct access
            self.descriptor = os.open(path, flags, 0o600)
        path.unlink()
        if self.size:
            os.posix_fallocate(self.descriptor, 0, self.size)

    def close(self) -> None:
        os.close(self.descriptor)


def unusable(directory: Path, needed: int) -> str:
    """Why ``needed`` bytes of files cannot be below ``directory`` (made if need be); "" if so."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=directory):
            free = shutil.disk_usage(directory).free
    except OSError as error:
        return f"cannot hold files: {error.strerror}; name a directory on a local disk"
    if needed <= free:
        return ""
    return (
        f"{free / GIB:.3g} GiB are free and the ranks of this node need {needed / GIB:.3g} GiB; "
        "name a larger disk, or train on more nodes"
    )


class FileIO:
    """Moves whole tiles between files and buffers, ``block_bytes`` at a time, in threads."""

    def __init__(self, threads: int, block_bytes: int) -> None:
        self._block = max(aligned(block_bytes), ALIGNMENT)
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, "dsengine-nvme")

    def read(self, file: TileFile, buffer: Buffer) -> list[Future[None]]:
        return self._in_blocks(_read_block, file, buffer)

    def write(self, file: TileFile, buffer: Buffer) -> list[Future[None]]:
        return self._in_blocks(_write_block, file, buffer)

    def _in_blocks(
        self, action: Callable[[int, memoryview, int], None], file: TileFile, buffer: Buffer
    ) -> list[Future[None]]:
        return [
            self._pool.submit(
                action,
                file.descriptor,
                buffer.bytes[start : min(start + self._block, file.size)],
                start,
            )
            for start in range(0, file.size, self._block)
        ]

    def close(self) -> None:
        self._pool.shutdown()


def _read_block(descriptor: int, block: memoryview, offset: int) -> None:
    done = os.preadv(descriptor, [block], offset)
    if done != len(block):
        raise OSError(f"read {done} of {len(block)} bytes at {offset}: the file is damaged")


def _write_block(descriptor: int, block: memoryview, offset: int) -> None:
    while block:
        done = os.pwritev(descriptor, [block], offset)
        block, offset = block[done:], offset + done


def wait(futures: list[Future[None]]) -> None:
    """Return when all are done; raise what one failed with."""
    for future in futures:
        future.result()


def fresh_directory(nvme_path: str, content: str, rank: int, needed: int) -> Path:
    """Return this rank's directory for ``content``, emptied of what an earlier run left.

    Raises OSError when fewer than ``needed`` bytes are free.
    """
    directory = Path(nvme_path) / "dsengine" / content / f"rank{rank}"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    free = shutil.disk_usage(directory).free
    if free < needed:
        raise OSError(
            f"nvme_path {nvme_path} has {free} bytes free; this rank's {content} need {needed}"
        )
    return directory
