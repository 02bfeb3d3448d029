"""Tile I/O on NVMe: unlinked files, aligned buffers, reads and writes in threads.

``os.preadv`` and ``os.pwritev`` release the GIL; with buffers and offsets aligned to the page size
they bypass the page cache (O_DIRECT) where the file system allows it.
"""

import mmap
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile

import torch
from torch import Tensor

from dsengine.tiers.memory import GIBI
from dsengine.topology import rank

View = Callable[[int, int], Tensor]
ALIGNMENT = 4096
"""Bytes; alignment that O_DIRECT requires of addresses, offsets and lengths."""


def aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


class Buffer:
    """Page-aligned host memory, viewed as bytes and as fp32 elements.

    It is excluded from forked processes, because direct reads into a page shared after a fork may
    reach the wrong process.
    """

    def __init__(self, size: int) -> None:
        self.size = max(aligned(size), ALIGNMENT)
        self._memory = mmap.mmap(-1, self.size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_DONTFORK"):
            self._memory.madvise(mmap.MADV_DONTFORK)
        self.bytes = memoryview(self._memory)
        self.elements: Tensor = torch.frombuffer(self._memory, dtype=torch.float32)

    def segments(self, count: int, elements: int) -> Tensor:
        """Return (count, elements): the start of each of ``count`` equal parts."""
        return self.elements.view(count, -1)[:, :elements]


@dataclass(frozen=True, slots=True)
class Extent:
    """Segments of a file: ``size`` bytes from each of ``starts``."""

    descriptor: int
    starts: tuple[int, ...]
    size: int


class UnnamedFile:
    """An unlinked file of fixed size, which is removed however the process ends.

    Raises OSError if space is insufficient, before anything is written.
    """

    def __init__(self, path: Path, size: int) -> None:
        self.size = max(aligned(size), ALIGNMENT)
        flags = os.O_RDWR | os.O_CREAT
        try:
            self.descriptor = os.open(path, flags | getattr(os, "O_DIRECT", 0), 0o600)
        except OSError:  # tmpfs and some network file systems have no direct I/O
            self.descriptor = os.open(path, flags, 0o600)
        path.unlink()
        try:
            os.posix_fallocate(self.descriptor, 0, self.size)
        except OSError as error:
            os.close(self.descriptor)
            raise OSError(
                error.errno,
                f"{error.strerror}: cannot create {self.size / GIBI:.3g} GiB in nvme_path; "
                "free space there, raise the file size limit, or use a larger disk",
                str(path.parent),
            ) from error

    @property
    def extent(self) -> Extent:
        return self.part((0,), self.size)

    def part(self, starts: tuple[int, ...], size: int) -> Extent:
        """Return an extent of ``size`` bytes, a multiple of ALIGNMENT, from each of ``starts``."""
        return Extent(self.descriptor, starts, size)

    @contextmanager
    def mapped(self) -> Iterator[View]:
        """Yield a function that maps (start, count) elements of the file as a tensor.

        Each tensor has its own storage, because checkpoints copy slices of a shared one. The data
        is on disk on exit; no other I/O on the file may run inside.
        """
        mapping = mmap.mmap(self.descriptor, self.size)

        def view(start: int, count: int) -> Tensor:
            if not count:
                return torch.empty(0)
            return torch.frombuffer(mapping, dtype=torch.float32, count=count, offset=4 * start)

        yield view
        mapping.flush()

    def close(self) -> None:
        os.close(self.descriptor)


def unusable(directory: Path, needed: int) -> str:
    """Return why ``needed`` bytes cannot be stored in ``directory`` (created if missing), or ""."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=directory):
            free = shutil.disk_usage(directory).free
    except OSError as error:
        return f"cannot create files: {error.strerror}; use a directory on a local disk"
    if needed <= free:
        return ""
    return (
        f"{free / GIBI:.3g} GiB are free, but the ranks of this node need {needed / GIBI:.3g} GiB; "
        "use a larger disk, or train on more nodes"
    )


class FileIO:
    """Transfers tiles between files and buffers in threads, ``block_bytes`` at a time.

    [Note: one buffer, two tiles]
    A block of a buffer can be reused as soon as it is written: ``exchange`` writes one tile and
    reads the next, block by block, in one request each. So two buffers keep a disk busy in both
    directions while a tile is updated, and only the next tile is waited for.
    """

    def __init__(self, in_flight: int, block_bytes: int) -> None:
        self._block = max(aligned(block_bytes), ALIGNMENT)
        self._in_flight = in_flight
        self._pool = ThreadPoolExecutor(in_flight, "dsengine-nvme")

    def exchange(
        self, buffer: Buffer, *, write: Extent | None = None, read: Extent | None = None
    ) -> list[Future[None]]:
        """Write the buffer to the segments of ``write``, then read those of ``read`` into it.

        The buffer has an equal part for each segment.
        """
        extents = [extent for extent in (write, read) if extent is not None]
        count, size = len(extents[0].starts), max(extent.size for extent in extents)
        part = buffer.size // count
        return [
            self._pool.submit(
                _exchange_block,
                buffer.bytes[segment * part : (segment + 1) * part],
                (start, start + self._block),
                None if write is None else (write.descriptor, write.starts[segment], write.size),
                None if read is None else (read.descriptor, read.starts[segment], read.size),
            )
            for segment in range(count)
            for start in range(0, size, self._block)
        ]

    def close(self) -> None:
        self._pool.shutdown()


FileRange = tuple[int, int, int]
"""File descriptor, offset and bytes of a segment."""


def _exchange_block(
    memory: memoryview, block: tuple[int, int], write: FileRange | None, read: FileRange | None
) -> None:
    start, stop = block
    for file_range, transfer in ((write, _write_block), (read, _read_block)):
        if file_range is not None:
            descriptor, offset, size = file_range
            if start < size:
                transfer(descriptor, memory[start : min(stop, size)], offset + start)


def _read_block(descriptor: int, block: memoryview, offset: int) -> None:
    done = os.preadv(descriptor, [block], offset)
    if done != len(block):
        raise OSError(f"read {done} of {len(block)} bytes at {offset}: the file is damaged")


def _write_block(descriptor: int, block: memoryview, offset: int) -> None:
    while block:
        done = os.pwritev(descriptor, [block], offset)
        block, offset = block[done:], offset + done


def wait(futures: list[Future[None]]) -> None:
    """Wait for all futures; raise the first error."""
    for future in futures:
        future.result()


def remove_directory(directory: Path) -> None:
    """Remove a directory made by ``fresh_directory``."""
    shutil.rmtree(directory, ignore_errors=True)


def fresh_directory(nvme_path: str, content: str, needed: int) -> Path:
    """Return this rank's directory for ``content``, emptied of an earlier run's files.

    Raises OSError if fewer than ``needed`` bytes are free.
    """
    directory = Path(nvme_path) / "dsengine" / content / f"rank{rank()}"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    free = shutil.disk_usage(directory).free
    if free < needed:
        raise OSError(
            f"nvme_path {nvme_path} has {free} bytes free; this rank's {content} need {needed}"
        )
    return directory
