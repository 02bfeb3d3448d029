"""Parameter shards on NVMe: file-backed memory that the kernel pages in and out.

A shard is a shared mapping of a file. The kernel reads it when the unit is gathered, keeps it while
there is memory, and writes it back otherwise. Files are unlinked once mapped, so they are removed
however the process ends.
"""

from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from dsengine.tiers.files import fresh_directory
from dsengine.torch_private.units import ShardedParameter, sharded_parameters_of


@torch.no_grad()
def move_shards_to_files(units: Iterable[FSDPModule], nvme_path: str, max_in_memory: int) -> int:
    """Move the shards of ``units`` into files, except for the first ``max_in_memory`` elements.

    The units must keep their shards on the host (CPUOffloadPolicy without pinned memory). Returns
    the bytes in files. Raises OSError if the file system has too little space.
    """
    chosen: list[ShardedParameter] = []
    in_memory = 0
    for parameter in sharded_parameters_of(units):
        size = parameter.flat_shard.numel()
        if in_memory + size <= max_in_memory:
            in_memory += size
        elif size:
            chosen.append(parameter)
    needed = sum(parameter.flat_shard.nbytes for parameter in chosen)
    directory = fresh_directory(nvme_path, "parameters", needed)
    for number, parameter in enumerate(chosen):
        parameter.use_memory(in_file(directory / f"shard{number}", parameter.flat_shard))
    return needed


def in_file(path: Path, data: Tensor) -> Tensor:
    """Return a copy of flat ``data`` in an unlinked file."""
    mapped = torch.from_file(str(path), shared=True, size=data.numel(), dtype=data.dtype)
    path.unlink()
    return mapped.copy_(data)
