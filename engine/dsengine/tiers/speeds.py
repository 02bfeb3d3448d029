"""Measured transfer rates of this machine: host memory, disk, host to GPU."""

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
"""Larger than caches, and than a staging buffer."""
DISK_BLOCK, DISK_IN_FLIGHT = 8 * MEBI, 4
"""Large concurrent requests, fastest for sequential direct I/O."""
ROUNDS = 3


def measure_rates(host: dsconfig.HostFacts) -> dsconfig.HostFacts:
    """Return ``host`` with this machine's measured rates in GB/s; takes seconds.

    The disk is that of ``nvme_path``, if set; it is left unchanged. Raises OSError if it cannot
    store 256 MiB.
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
    """Return GB/s of a host memory copy, counting reads and writes, on torch's threads."""
    source = torch.ones(MOVED_BYTES, dtype=torch.uint8)
    target = torch.ones_like(source)
    return 2 * _fastest(lambda: target.copy_(source))


def disk(directory: Path) -> tuple[float, float]:
    """Return GB/s of sequential direct (reads, writes) in ``directory``."""
    with tempfile.TemporaryDirectory(dir=directory) as folder:
        file, buffer = UnnamedFile(Path(folder) / "measured", MOVED_BYTES), Buffer(MOVED_BYTES)
        io = FileIO(DISK_IN_FLIGHT, DISK_BLOCK)
        try:
            write = _fastest(lambda: wait(io.exchange(buffer, write=file.extent)))
            read = _fastest(lambda: wait(io.exchange(buffer, read=file.extent)))
        finally:
            io.close()
            file.close()
    return read, write


def gpu_copy() -> float:
    """Return GB/s of a copy from page-locked host memory to the GPU."""
    source = torch.ones(MOVED_BYTES, dtype=torch.uint8, pin_memory=True)
    target = torch.empty_like(source, device="cuda")

    def copy() -> None:
        target.copy_(source, non_blocking=True)
        torch.cuda.synchronize()

    return _fastest(copy)


def _fastest(transfer: Callable[[], object]) -> float:
    """Return GB/s of the fastest of ROUNDS transfers of MOVED_BYTES, after a warmup."""
    transfer()
    seconds = []
    for _ in range(ROUNDS):
        start = perf_counter()
        transfer()
        seconds.append(perf_counter() - start)
    return MOVED_BYTES / min(seconds) / 1e9
