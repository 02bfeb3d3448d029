"""DeepSpeed's flat partitions: tensors by name are cut into them, and put together of them.

Stages 1 and 2: the parameters of a group lie one behind the other in one flat buffer, cut into
one piece per rank; a parameter may lie across a cut. Stage 3: each parameter is cut by itself
into as many equal pieces as there are ranks, the last one padded; a rank's pieces lie one behind
the other.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from dsengine.checkpoints.errors import CheckpointError

Shapes = Sequence[Mapping[str, torch.Size]]
"""Per parameter group: name -> shape of the whole parameter."""
ALIGNMENT = 2
"""Stages 1 and 2 pad a group to a multiple of this many elements per rank."""


def flat_pieces(tensors: Sequence[Tensor], ranks: int) -> list[Tensor]:
    """Cut a group of stages 1 and 2 into one piece per rank, the last ones padded."""
    flat = torch.cat([tensor.flatten() for tensor in tensors])
    padded = pad(flat, (0, -flat.numel() % (ALIGNMENT * ranks)))
    return [piece.clone() for piece in padded.chunk(ranks)]


def own_pieces(tensors: Sequence[Tensor], ranks: int) -> list[Tensor]:
    """Cut each tensor of stage 3 by itself; return each rank's pieces, one behind the other."""
    cut = [pad(t.flatten(), (0, -t.numel() % ranks)).chunk(ranks) for t in tensors]
    return [torch.cat(of_rank) for of_rank in zip(*cut, strict=True)]


def sub_groups(names: Sequence[str], pieces: Sequence[int], limit: int) -> list[list[str]]:
    """Divide a group of stage 3, of which a rank has ``pieces`` elements of each weight.

    A part ends with the weight by which it reaches ``limit`` elements; a group that does not
    exceed the limit stays whole.
    """
    if sum(pieces) <= limit:
        return [list(names)]
    parts: list[list[str]] = [[]]
    held = 0
    for name, piece in zip(names, pieces, strict=True):
        if held >= limit:
            parts.append([])
            held = 0
        parts[-1].append(name)
        held += piece
    return parts


def slices(
    names: Sequence[str], sizes: Mapping[str, int], length: int
) -> list[dict[str, tuple[int, int]]]:
    """Say for each piece of ``length`` elements what lies in it: name -> (elements, start)."""
    found: list[dict[str, tuple[int, int]]] = []
    begin = 0
    for name in names:
        end = begin + sizes[name]
        for rank in range(begin // length, -(-end // length)):
            while len(found) <= rank:
                found.append({})
            first = max(begin, rank * length)
            last = min(end, (rank + 1) * length)
            found[rank][name] = (last - first, first - rank * length)
        begin = end
    return found


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
