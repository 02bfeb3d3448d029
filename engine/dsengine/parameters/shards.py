"""Shards that may rest on another device than that of their mesh, as offloaded ones do.

torch brings what it makes a shard of to the mesh's device (``from_local``, ``distribute_tensor``),
and gathers shards where they are: those on the host over the host's backend, which is slow, and
which a group started with ``nccl`` does not have.
"""

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from dsengine.torch_private import as_shard, local_part, shard_slices


def is_indivisible(parameter: Tensor) -> bool:
    """Whether there is nothing to divide: no dimension, or no element."""
    return parameter.dim() == 0 or parameter.numel() == 0


@torch.no_grad()
def local_slice_of(whole: Tensor, like: DTensor) -> Tensor:
    """Return a view of what this rank holds of ``whole``, where ``whole`` is.

    Raises ValueError when ``whole`` has not the shape of ``like``.
    """
    if whole.shape != like.shape:
        raise ValueError(f"a tensor of shape {tuple(whole.shape)} for one of {tuple(like.shape)}")
    return whole.detach()[shard_slices(like)]


@torch.no_grad()
def full_tensor_of(shard: DTensor) -> Tensor:
    """Gather the whole tensor on the mesh's device. Collective."""
    local, device = shard.to_local(), shard.device_mesh.device_type
    if local.device.type != device:
        shard = as_shard(local.to(device), shard)
    return shard.full_tensor()


@torch.no_grad()
def copy_local_slice(target: Tensor, whole: Tensor) -> None:
    """Copy into ``target`` its part of ``whole``; no communication."""
    local_part(target).copy_(
        local_slice_of(whole, target) if isinstance(target, DTensor) else whole
    )
