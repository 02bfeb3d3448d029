"""Shards stored on another device than their mesh's, as with offloading.

torch moves what it makes a shard of to the mesh's device (``from_local``, ``distribute_tensor``),
and gathers shards where they are stored: on the host it uses the host backend, which is slow and
missing in a group started with ``nccl``.
"""

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from dsengine.torch_private.tensors import as_shard, local_part, shard_slices


def is_indivisible(parameter: Tensor) -> bool:
    """Whether the parameter cannot be sharded: it has no dimension or no element."""
    return parameter.dim() == 0 or parameter.numel() == 0


def is_shard(tensor: Tensor | None) -> bool:
    """Whether this is a shard, not a gathered parameter, of which a rank may have a split part."""
    return isinstance(tensor, DTensor) and tensor.device_mesh.mesh_dim_names != ("tensor",)


def is_split(tensor: Tensor) -> bool:
    """Whether the ranks of a tensor-parallel group have different parts of it."""
    if not isinstance(tensor, DTensor):
        return False
    axes = zip(tensor.device_mesh.mesh_dim_names or (), tensor.placements, strict=False)
    return any(name == "tensor" and placement.is_shard() for name, placement in axes)


@torch.no_grad()
def local_slice_of(full: Tensor, like: DTensor) -> Tensor:
    """Return a view of this rank's slice of ``full``, sharded like ``like``.

    Raises ValueError if the shapes differ.
    """
    if full.shape != like.shape:
        raise ValueError(f"expected shape {tuple(like.shape)}, not {tuple(full.shape)}")
    return full.detach()[shard_slices(like)]


@torch.no_grad()
def full_tensor_of(shard: DTensor) -> Tensor:
    """Gather the full tensor on the mesh's device. Collective."""
    local, device = shard.to_local(), shard.device_mesh.device_type
    if local.device.type != device:
        shard = as_shard(local.to(device), shard)
    return shard.full_tensor()


@torch.no_grad()
def copy_local_slice(target: Tensor, full: Tensor) -> None:
    """Copy this rank's slice of ``full`` into ``target``; no communication."""
    local_part(target).copy_(local_slice_of(full, target) if isinstance(target, DTensor) else full)
