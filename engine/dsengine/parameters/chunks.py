"""Chunking a tensor along its first axis, as ``fully_shard`` does, and gathering it."""

import torch
import torch.distributed as dist
from torch import Tensor

from dsengine.torch_private.groups import all_gather_flat


def chunk_of(full: Tensor, rank: int, ranks: int) -> Tensor:
    """Return a view of the rank's chunk; empty if there are more ranks than rows."""
    chunks = full.chunk(ranks)
    return chunks[rank] if rank < len(chunks) else full[:0]


def gather_chunks(chunk: Tensor, shape: torch.Size, group: dist.ProcessGroup) -> Tensor:
    """Gather the full tensor of ``shape`` from every rank's chunk. Collective."""
    ranks = group.size()
    rows = -(-shape[0] // ranks)
    padded = chunk.new_zeros((rows, *shape[1:]))
    padded[: chunk.shape[0]] = chunk
    full = chunk.new_empty((rows * ranks, *shape[1:]))
    all_gather_flat(full, padded, group=group)
    return full[: shape[0]].contiguous()
