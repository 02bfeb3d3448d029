"""From DeepSpeed's flat partitions to tensors by name.

Stages 1 and 2: the parameters of a group lie one behind the other in one flat buffer, cut into
one piece per rank; a parameter may lie across a cut. Stage 3: each parameter is cut by itself
into as many equal pieces as there are ranks, the last one padded; a rank's pieces lie one behind
the other.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from dsengine.checkpoints.errors import CheckpointError

Shapes = Sequence[Mapping[str, torch.Size]]
"""Per parameter group: name -> shape of the whole parameter."""


def merge_flat_groups(
    shapes: Shapes, flats: Sequence[Sequence[Tensor]], paddings: Sequence[Sequence[int]]
) -> dict[str, Tensor]:
    """Merge stages 1 and 2. ``flats`` are indexed by rank, then by group.

    ``paddings``: per group, the elements behind each parameter. The order of ``shapes`` is that
    of the buffer, also under round_robin_gradients, where the slice mappings in the same file
    are not to be trusted (seen with 0.19.8).
    """
    merged: dict[str, Tensor] = {}
    for number, group in enumerate(shapes):
        flat = torch.cat([rank[number] for rank in flats])
        gaps = paddings[number] if paddings else [0] * len(group)
        start = 0
        for (name, shape), gap in zip(group.items(), gaps, strict=True):
            merged[name] = _shaped(name, flat[start : start + shape.numel()], shape)
            start += shape.numel() + gap
    return merged


def merge_pieces(shapes: Shapes, flats: Sequence[Tensor]) -> dict[str, Tensor]:
    """Merge stage 3. ``flats``: per rank, all its pieces one behind the other."""
    merged: dict[str, Tensor] = {}
    start, ranks = 0, len(flats)
    for group in shapes:
        for name, shape in group.items():
            length = -(-shape.numel() // ranks)
            whole = torch.cat([flat[start : start + length] for flat in flats])
            merged[name] = _shaped(name, whole[: shape.numel()], shape)
            start += length
    return merged


def merge_fragments(
    shapes: Mapping[str, torch.Size], fragments: Sequence[Mapping[str, Tensor]]
) -> dict[str, Tensor]:
    """Merge frozen parameters: whole in the first file, or one piece in each."""
    merged: dict[str, Tensor] = {}
    for name, shape in shapes.items():
        flat = torch.cat([fragment[name].flatten() for fragment in fragments])
        merged[name] = _shaped(name, flat[: shape.numel()], shape)
    return merged


def _shaped(name: str, flat: Tensor, shape: torch.Size) -> Tensor:
    if flat.numel() != shape.numel():
        raise CheckpointError(
            f"{name} has {flat.numel()} elements in the files where {shape.numel()} belong"
        )
    return flat.detach().view(shape)
