"""Cutting a tensor along its first axis, as ``fully_shard`` does, and putting it together."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

# torch 2.13 renames the operation and warns about the old name.
_all_gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


def piece_of(whole: Tensor, rank: int, ranks: int) -> Tensor:
    """Return a copy of rank's piece; empty where there are more ranks than rows."""
    pieces = whole.chunk(ranks)
    return pieces[rank].clone() if rank < len(pieces) else whole[:0].clone()


def put_together(piece: Tensor, shape: torch.Size, group: dist.ProcessGroup | None) -> Tensor:
    """Return the whole tensor of ``shape`` from every rank's piece. Collective."""
    ranks = dist.get_world_size(group)
    rows = -(-shape[0] // ranks)
    padded = piece.new_zeros((rows, *shape[1:]))
    padded[: piece.shape[0]] = piece
    whole = piece.new_empty((rows * ranks, *shape[1:]))
    _all_gather(whole, padded, group=group)
    return whole[: shape[0]].contiguous()


_host_group: list[dist.ProcessGroup] = []


def group_for(tensor: Tensor) -> dist.ProcessGroup | None:
    """Return a group that can move ``tensor``: the default one, or gloo for host tensors."""
    default = dist.distributed_c10d._get_default_group()
    if torch.device(tensor.device.type) in default._device_types:
        return None
    if not _host_group:
        group = dist.new_group(backend="gloo")
        if isinstance(group, dist.ProcessGroup):
            _host_group.append(group)
    return _host_group[0]
