"""How fast this machine moves what is offloaded: main memory, a disk, the way to a card."""

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from time import perf_counter

import torch

import dsconfig
from dsengine.tiers.files import Buffer, FileIO, UnnamedFile, wait
from dsengine.tiers.memory import MEBI

MOVED_BYTES = 256 * MEBI
"""More than caches hold, and a staging buffer's size."""
DISK_BLOCK, DISK_IN_FLIGHT = 8 * MEBI, 4
"""Large requests, several at a time: what sequential direct I/O is fastest with."""
ROUNDS = 3


def measured(host: dsconfig.HostFacts) -> dsconfig.HostFacts:
    """Return ``host`` with the rates of this machine, in GB/s; takes seconds.

    The disk is the one below its ``nvme_path``, if it has one, which is left as it was. Raises
    OSError where that cannot hold 256 MiB.
    """
    read, write = (None, None) if host.nvme_path is None else disk(Path(host.nvme_path))
    return replace(
        host,
        copy_gb_per_second=memory_copy(),
        nvme_read_gb_per_second=read,
        nvme_write_gb_per_second=write,
        card_gb_per_second=gpu_copy() if torch.cuda.is_available() else None,
    )


def memory_copy() -> float:
    """GB/s that a copy of main memory reads and writes, both counted, on torch's threads."""
    source = torch.ones(MOVED_BYTES, dtype=torch.uint8)
    target = torch.ones_like(source)
    return 2 * _fastest(lambda: target.copy_(source))


def disk(directory: Path) -> tuple[float, float]:
    """GB/s of sequential direct (reads, writes) below ``directory``."""
    with tempfile.TemporaryDirectory(dir=directory) as folder:
        file, buffer = UnnamedFile(Path(folder) / "measured", MOVED_BYTES), Buffer(MOVED_BYTES)
        io = FileIO(DISK_IN_FLIGHT, DISK_BLOCK)
        try:
            write = _fastest(lambda: wait(io.exchange(buffer, write=file.whole)))
            read = _fastest(lambda: wait(io.exchange(buffer, read=file.whole)))
        finally:
            io.close()
            file.close()
    return read, write


def gpu_copy() -> float:
    """GB/s of a copy from page-locked memory to the card."""
    source = torch.ones(MOVED_BYTES, dtype=torch.uint8, pin_memory=True)
    target = torch.empty_like(source, device="cuda")

    def copy() -> None:
        target.copy_(source, non_blocking=True)
        torch.cuda.synchronize()

    return _fastest(copy)


def _fastest(move: Callable[[], object]) -> float:
    """GB/s of the fastest of a few moves of MOVED_BYTES; one before them is not counted."""
    move()
    seconds = []
    for _ in range(ROUNDS):
        start = perf_counter()
        move()
        seconds.append(perf_counter() - start)
    return MOVED_BYTES / min(seconds) / 1e9
