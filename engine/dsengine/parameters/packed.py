"""The order of packed weights: several matrices in one dimension, each split over all ranks.

[Note: packed weights]
A rank has its part of each matrix (query, key and value; gate and up), and DTensor puts the ranks
one behind the other, so the stored order is not that of the full weight. torch's strided placement
expresses this for matrices of one size, but ``fully_shard`` around it restores wrong rows (2.13).
Here the placement only marks the order: values are gathered as if it were contiguous, and then put
in order. transformers and DeepSpeed split packed weights into the same parts.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from dsengine.torch_private.tensors import split_factor

_UNEQUAL: dict[tuple[int, ...], int] = {}
"""Split factors that stand for matrices of different sizes, larger than any number of them."""
_FIRST = 2**20


class Segment(NamedTuple):
    """Neighboring elements of one dimension that are neighbors in both orders."""

    stored: int
    full: int
    size: int


def factor_of(sizes: tuple[int, ...]) -> int:
    """Return the split factor that marks a dimension with matrices of these sizes."""
    if len(set(sizes)) == 1:
        return len(sizes)
    return _UNEQUAL.setdefault(sizes, _FIRST + len(_UNEQUAL))


def segments(sizes: tuple[int, ...], ranks: int) -> Iterator[Segment]:
    """Yield the segments of a packed dimension in the stored order."""
    stored = 0
    for rank in range(ranks):
        start = 0
        for size in sizes:
            own = size // ranks
            yield Segment(stored, start + rank * own, own)
            stored, start = stored + own, start + size


def segments_of(shard: DTensor) -> tuple[int, list[Segment]] | None:
    """Return the packed dimension of a shard and its segments; None if it is not packed."""
    mesh = shard.device_mesh
    names = mesh.mesh_dim_names or ()
    for axis, placement in enumerate(shard.placements):
        if names[axis : axis + 1] == ("tensor",) and (factor := split_factor(placement)):
            dimension, count = factor
            size = shard.shape[dimension]
            equal = (size // count,) * count if count < _FIRST else ()
            sizes = equal or next(key for key, value in _UNEQUAL.items() if value == count)
            return dimension, list(segments(sizes, mesh.size(axis)))
    return None


def in_full_order(stored: Tensor, dimension: int, order: list[Segment]) -> Tensor:
    """Return a tensor whose ``dimension`` is in the stored order in that of the full weight."""
    parts = [
        stored.narrow(dimension, segment.stored, segment.size)
        for segment in sorted(order, key=lambda segment: segment.full)
    ]
    return torch.cat(parts, dimension)
