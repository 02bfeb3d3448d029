"""Tiles on NVMe: a file without a name, aligned buffers, reads and writes in threads.

``os.preadv`` and ``os.pwritev`` release the interpreter; with buffers and offsets aligned to the
page size they go past the page cache (O_DIRECT) where the file system allows it.
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
import torch.distributed as dist
from torch import Tensor

from dsengine.tiers.memory import GIBI

View = Callable[[int, int], Tensor]
ALIGNMENT = 4096
"""Bytes; what O_DIRECT asks of addresses, offsets and lengths."""


def aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


class Buffer:
    """Page-aligned host memory, seen as bytes and as fp32 elements.

    It stays out of processes that are forked, for what a disk writes into a page that two share
    may reach the wrong one.
    """

    def __init__(self, size: int) -> None:
        self.size = max(aligned(size), ALIGNMENT)
        self._memory = mmap.mmap(-1, self.size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_DONTFORK"):
            self._memory.madvise(mmap.MADV_DONTFORK)
        self.bytes = memoryview(self._memory)
        self.elements: Tensor = torch.frombuffer(self._memory, dtype=torch.float32)

    def segments(self, count: int, elements: int) -> Tensor:
        """Return (count, elements): the beginnings of ``count`` equal parts."""
        return self.elements.view(count, -1)[:, :elements]


@dataclass(frozen=True, slots=True)
class Extent:
    """Segments of a file, of ``size`` bytes each, that begin at ``starts``."""

    descriptor: int
    starts: tuple[int, ...]
    size: int


class UnnamedFile:
    """A file of fixed size, without a name: it vanishes with the process, however that ends.

    Raises OSError, before anything is written, when space is short.
    """

    def __init__(self, path: Path, size: int) -> None:
        self.size = max(aligned(size), ALIGNMENT)
        flags = os.O_RDWR | os.O_CREAT
        try:
            self.descriptor = os.open(path, flags | getattr(os, "O_DIRECT", 0), 0o600)
        except OSError:  # tmpfs and some network file systems know no direct access
            self.descriptor = os.open(path, flags, 0o600)
        path.unlink()
        try:
            os.posix_fallocate(self.descriptor, 0, self.size)
        except OSError as error:
            os.close(self.descriptor)
            raise OSError(
                error.errno,
                f"{error.strerror}: nvme_path refuses a file of {self.size / GIBI:.3g} GiB; free "
                "space there, raise the limit on files, or name a larger disk",
                str(path.parent),
            ) from error

    @property
    def whole(self) -> Extent:
        return self.part((0,), self.size)

    def part(self, starts: tuple[int, ...], size: int) -> Extent:
        """``size`` bytes, a multiple of ALIGNMENT, from each of ``starts`` on."""
        return Extent(self.descriptor, starts, size)

    @contextmanager
    def mapped(self) -> Iterator[View]:
        """Yield what makes tensors of (start, count) elements of the file, paged by the kernel.

        Each is a storage of its own: of a part of one a checkpoint would take a copy. All is on
        the disk on leaving; nothing else may be under way on the file meanwhile.
        """
        held = mmap.mmap(self.descriptor, self.size)

        def view(start: int, count: int) -> Tensor:
            if not count:
                return torch.empty(0)
            return torch.frombuffer(held, dtype=torch.float32, count=count, offset=4 * start)

        yield view
        held.flush()

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
        f"{free / GIBI:.3g} GiB are free and the ranks of this node need {needed / GIBI:.3g} GiB; "
        "name a larger disk, or train on more nodes"
    )


class FileIO:
    """Moves whole tiles between files and buffers, ``block_bytes`` at a time, in threads.

    [Note: one buffer, two tiles]
    A block of a buffer is free for another tile as soon as it is written: ``exchange`` writes one
    tile and reads the next block by block, in one request each. So two buffers keep a disk busy in
    both directions while a tile is updated, and nobody waits but for the tile that is needed next.
    """

    def __init__(self, in_flight: int, block_bytes: int) -> None:
        self._block = max(aligned(block_bytes), ALIGNMENT)
        self._in_flight = in_flight
        self._pool = ThreadPoolExecutor(in_flight, "dsengine-nvme")

    def exchange(
        self, buffer: Buffer, *, write: Extent | None = None, read: Extent | None = None
    ) -> list[Future[None]]:
        """Write the buffer to segments of a file, then read others into it.

        The buffer has an equal part for each segment.
        """
        extents = [each for each in (write, read) if each is not None]
        count, size = len(extents[0].starts), max(each.size for each in extents)
        room = buffer.size // count
        return [
            self._pool.submit(
                _exchange_block,
                buffer.bytes[segment * room : (segment + 1) * room],
                (start, start + self._block),
                None if write is None else (write.descriptor, write.starts[segment], write.size),
                None if read is None else (read.descriptor, read.starts[segment], read.size),
            )
            for segment in range(count)
            for start in range(0, size, self._block)
        ]

    def close(self) -> None:
        self._pool.shutdown()


Place = tuple[int, int, int]
"""A file's descriptor, and where in it a segment begins, of how many bytes."""


def _exchange_block(
    memory: memoryview, block: tuple[int, int], write: Place | None, read: Place | None
) -> None:
    start, stop = block
    for place, move in ((write, _write_block), (read, _read_block)):
        if place is not None:
            descriptor, offset, size = place
            if start < size:
                move(descriptor, memory[start : min(stop, size)], offset + start)


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


def remove_directory(directory: Path) -> None:
    """Remove what ``fresh_directory`` has made."""
    shutil.rmtree(directory, ignore_errors=True)


def fresh_directory(nvme_path: str, content: str, needed: int) -> Path:
    """Return this rank's directory for ``content``, emptied of what an earlier run left.

    Raises OSError when fewer than ``needed`` bytes are free.
    """
    rank = dist.get_rank() if dist.is_initialized() else 0
    directory = Path(nvme_path) / "dsengine" / content / f"rank{rank}"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    free = shutil.disk_usage(directory).free
    if free < needed:
        raise OSError(
            f"nvme_path {nvme_path} has {free} bytes free; this rank's {content} need {needed}"
        )
    return directory
