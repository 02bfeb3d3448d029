"""Cutting a tensor along its first axis, as ``fully_shard`` does, and putting it together."""

import torch
import torch.distributed as dist
from torch import Tensor

from dsengine.torch_private import all_gather_flat, supports_device


def chunk_of(whole: Tensor, rank: int, ranks: int) -> Tensor:
    """Return a view of rank's piece; empty where there are more ranks than rows."""
    pieces = whole.chunk(ranks)
    return pieces[rank] if rank < len(pieces) else whole[:0]


def gather_chunks(piece: Tensor, shape: torch.Size, group: dist.ProcessGroup | None) -> Tensor:
    """Return the whole tensor of ``shape`` from every rank's piece. Collective."""
    ranks = dist.get_world_size(group)
    rows = -(-shape[0] // ranks)
    padded = piece.new_zeros((rows, *shape[1:]))
    padded[: piece.shape[0]] = piece
    whole = piece.new_empty((rows * ranks, *shape[1:]))
    all_gather_flat(whole, padded, group=group)
    return whole[: shape[0]].contiguous()


_host_group: list[dist.ProcessGroup] = []


def group_for(tensor: Tensor) -> dist.ProcessGroup | None:
    """Return a group that can move ``tensor``: the default one, or gloo for host tensors."""
    if supports_device(None, tensor.device.type):
        return None
    if not _host_group:
        group = dist.new_group(backend="gloo")
        if isinstance(group, dist.ProcessGroup):
            _host_group.append(group)
    return _host_group[0]
