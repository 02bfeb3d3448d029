"""Shards that may rest on another device than that of their mesh, as offloaded ones do.

torch brings what it makes a shard of to the mesh's device (``from_local``, ``distribute_tensor``),
and gathers shards where they are: those on the host over the host's backend, which is slow, and
which a group started with ``nccl`` does not have.
"""

from dataclasses import replace

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset


@torch.no_grad()
def as_shard(part: Tensor, like: DTensor) -> DTensor:
    """Return this rank's ``part`` as a shard divided as ``like`` is, in the same memory."""
    meta = like._spec.tensor_meta
    assert meta is not None
    spec = replace(like._spec, tensor_meta=meta._replace(dtype=part.dtype))
    return DTensor(part.detach(), spec, requires_grad=False)


@torch.no_grad()
def part_of(whole: Tensor, like: DTensor) -> Tensor:
    """Return a view of what this rank holds of ``whole``, where ``whole`` is.

    Raises ValueError when ``whole`` has not the shape of ``like``.
    """
    if whole.shape != like.shape:
        raise ValueError(f"a tensor of shape {tuple(whole.shape)} for one of {tuple(like.shape)}")
    shape, offset = compute_local_shape_and_global_offset(
        like.shape, like.device_mesh, like.placements
    )
    return whole.detach()[tuple(slice(o, o + n) for o, n in zip(offset, shape, strict=True))]


@torch.no_grad()
def whole_of(shard: DTensor) -> Tensor:
    """Gather the whole tensor on the mesh's device. Collective."""
    local, device = shard.to_local(), shard.device_mesh.device_type
    if local.device.type != device:
        shard = as_shard(local.to(device), shard)
    return shard.full_tensor()
