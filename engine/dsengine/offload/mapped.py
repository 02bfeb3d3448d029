"""Parameter shards on NVMe: file-backed memory that the kernel pages in and out.

A shard of a parameter that rests on NVMe is a shared mapping of a file. The kernel reads it when
the unit is gathered, keeps it as long as there is memory, and writes it back otherwise. Files are
unlinked as soon as they are mapped, so they vanish with the process, however it ends.
"""

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from dsengine.checkpoint.names import parameter_groups
from dsengine.offload.files import fresh_directory


@torch.no_grad()
def rest_in_files(units: Iterable[FSDPModule], nvme_path: str, max_in_memory: int) -> int:
    """Move the shards of ``units`` into files, but for the first ``max_in_memory`` elements.

    The units must keep their shards on the host (CPUOffloadPolicy without pinned memory).
    Returns the bytes in files. Raises OSError when the file system is short of space.
    """
    entries = [e for unit in units for group in parameter_groups(unit) for e in group.fsdp_params]
    chosen: list[Any] = []
    held = 0
    for entry in entries:
        size = entry._sharded_param_data.numel()
        if held + size <= max_in_memory:
            held += size
        elif size:
            chosen.append(entry)
    needed = sum(entry._sharded_param_data.nbytes for entry in chosen)
    rank = dist.get_rank() if dist.is_initialized() else 0
    directory = fresh_directory(nvme_path, "parameters", rank, needed)
    for number, entry in enumerate(chosen):
        path = directory / f"shard{number}"
        _replace(entry, _mapped(str(path), entry._sharded_param_data))
        path.unlink()
    return needed


def _mapped(path: str, data: Tensor) -> Tensor:
    """Return a copy of flat ``data`` in a file."""
    mapped = torch.from_file(path, shared=True, size=data.numel(), dtype=data.dtype)
    return mapped.copy_(data)


def _replace(entry: Any, flat: Tensor) -> None:
    """Let ``fully_shard``'s record of a parameter use ``flat`` as its shard's memory."""
    shape = entry.sharded_param._local_tensor.shape
    padded = flat.view(entry.padded_sharded_param_size)
    entry._sharded_param_data = flat
    entry.sharded_param._local_tensor = padded[: shape[0]] if shape.numel() else padded[:0]
