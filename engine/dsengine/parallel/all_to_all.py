"""Exchange heads for parts of the sequence: every rank sends one slice to each rank of a group."""

import torch
import torch.distributed as dist
from torch import Tensor

from dsengine.torch_private.groups import all_to_all_slices


def split_heads(tensor: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Return this rank's heads over the whole sequence.

    ``tensor``: [batch, heads, sequence / ranks, head size] -> [batch, heads / ranks, sequence,
    head size]. Differentiable; collective over ``group``. ``heads`` must be a multiple of the
    number of ranks.
    """
    ranks = group.size()
    batch, heads, length, size = tensor.shape
    slices = tensor.reshape(batch, ranks, heads // ranks, length, size).transpose(0, 1)
    received = all_to_all_slices(slices, group)
    return received.permute(1, 2, 0, 3, 4).reshape(batch, heads // ranks, ranks * length, size)


def split_sequence(tensor: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Return all heads of this rank's part of the sequence: the inverse of ``split_heads``.

    ``tensor``: [batch, heads / ranks, sequence, head size] -> [batch, heads, sequence / ranks,
    head size].
    """
    ranks = group.size()
    batch, heads, length, size = tensor.shape
    slices = tensor.reshape(batch, heads, ranks, length // ranks, size).permute(2, 0, 1, 3, 4)
    received = all_to_all_slices(slices, group)
    return received.transpose(0, 1).reshape(batch, ranks * heads, length // ranks, size)


def all_gather(tensor: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Concatenate every rank's [..., sequence / ranks] along the sequence; no gradient."""
    parts = [torch.empty_like(tensor) for _ in range(group.size())]
    dist.all_gather(parts, tensor.contiguous(), group=group)
    return torch.cat(parts, dim=-1)
