"""Slices, pieces and chunks of a parameter, and gathering it, on whichever device its shard is.

torch moves what it makes a shard of to the mesh's device (``from_local``, ``distribute_tensor``),
and gathers shards where they are stored: on the host it uses the host backend, which is slow and
missing in a group started with ``nccl``.
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from dsengine.parameters.packed import in_full_order, segments_of
from dsengine.torch_private.groups import all_gather_flat
from dsengine.torch_private.tensors import as_shard, local_part, shard_slices, unstrided

Slices = tuple[slice, ...]

_SPLITS = (("tensor",), ("expert",))
"""Axes of meshes over which weights are split before they are sharded."""


def is_indivisible(parameter: Tensor) -> bool:
    """Whether the parameter cannot be sharded: it has no dimension, no element, or integers."""
    is_number = parameter.is_floating_point() or parameter.is_complex()
    return parameter.dim() == 0 or parameter.numel() == 0 or not is_number


def is_shard(tensor: Tensor | None) -> bool:
    """Whether this is a shard, not a gathered parameter, of which a rank may have a split part."""
    return isinstance(tensor, DTensor) and tensor.device_mesh.mesh_dim_names not in _SPLITS


def is_split(tensor: Tensor) -> bool:
    """Whether the ranks of a tensor-parallel group have different parts of it."""
    return _is_divided(tensor, "tensor")


def is_of_experts(tensor: Tensor) -> bool:
    """Whether the ranks of an expert-parallel group have different experts of it."""
    return _is_divided(tensor, "expert")


def _is_divided(tensor: Tensor, axis: str) -> bool:
    if not isinstance(tensor, DTensor):
        return False
    axes = zip(tensor.device_mesh.mesh_dim_names or (), tensor.placements, strict=False)
    return any(name == axis and not placement.is_replicate() for name, placement in axes)


def pieces_of(shard: DTensor) -> list[tuple[Slices, Slices]]:
    """Return the slices of this rank's part, and those of the full tensor that belong there."""
    if (packed := segments_of(shard)) is None:
        full = shard_slices(shard)
        return [(tuple(slice(0, each.stop - each.start) for each in full), full)]
    dimension, order = packed
    stored = shard_slices(unstrided(local_part(shard), shard))
    local = tuple(slice(0, each.stop - each.start) for each in stored)
    own, pieces = stored[dimension], list[tuple[Slices, Slices]]()
    for segment in order:
        start = max(own.start, segment.stored)
        stop = min(own.stop, segment.stored + segment.size)
        if start < stop:
            at = (slice(start - own.start, stop - own.start),)
            shift = segment.full - segment.stored
            there = (slice(start + shift, stop + shift),)
            before, after = slice(None, dimension), slice(dimension + 1, None)
            pieces.append(
                (local[before] + at + local[after], stored[before] + there + stored[after])
            )
    return pieces


@torch.no_grad()
def local_slice_of(full: Tensor, like: DTensor) -> Tensor:
    """Return this rank's slice of ``full``, sharded like ``like``: a view unless it is packed.

    Raises ValueError if the shapes differ.
    """
    if full.shape != like.shape:
        raise ValueError(f"expected shape {tuple(like.shape)}, not {tuple(full.shape)}")
    pieces = [full.detach()[there] for _, there in pieces_of(like)]
    if len(pieces) == 1:
        return pieces[0]
    packed = segments_of(like)
    return (
        torch.cat(pieces, packed[0])
        if packed and pieces
        else full.new_empty(local_part(like).shape)
    )


@torch.no_grad()
def full_tensor_of(shard: DTensor) -> Tensor:
    """Gather the full tensor on the mesh's device. Collective."""
    local, device = shard.to_local(), shard.device_mesh.device_type
    if local.device.type != device:
        shard = as_shard(local.to(device), shard)
    if (packed := segments_of(shard)) is None:
        return shard.full_tensor()
    return in_full_order(unstrided(shard.to_local(), shard).full_tensor(), *packed)


@torch.no_grad()
def copy_local_slice(target: Tensor, full: Tensor) -> None:
    """Copy this rank's slice of ``full`` into ``target``; no communication."""
    local_part(target).copy_(local_slice_of(full, target) if isinstance(target, DTensor) else full)


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
