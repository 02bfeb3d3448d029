"""DeepSpeed's flat partitions: splitting named tensors into them, and merging them.

Stages 1 and 2: the parameters of a group are concatenated into one flat buffer, which is split into
one partition per rank; a parameter may cross a boundary. Stage 3: each parameter is split into
equal partitions, one per rank, the last one padded; a rank's partitions are concatenated.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from dsengine.checkpoints.group import CheckpointError

Shapes = Sequence[Mapping[str, torch.Size]]
"""Per parameter group: name -> shape of the full parameter."""
ALIGNMENT = 2
"""Stages 1 and 2 pad a group to a multiple of this many elements per rank."""


def split_group(tensors: Sequence[Tensor], ranks: int) -> list[Tensor]:
    """Split a group into one partition per rank, with padding at the end (stages 1 and 2)."""
    flat = torch.cat([tensor.flatten() for tensor in tensors])
    padded = pad(flat, (0, -flat.numel() % (ALIGNMENT * ranks)))
    return [partition.clone() for partition in padded.chunk(ranks)]


def split_each(tensors: Sequence[Tensor], ranks: int) -> list[Tensor]:
    """Split each tensor, and return each rank's concatenated partitions (stage 3)."""
    split = [pad(t.flatten(), (0, -t.numel() % ranks)).chunk(ranks) for t in tensors]
    return [torch.cat(partitions) for partitions in zip(*split, strict=True)]


def sub_groups(names: Sequence[str], sizes: Sequence[int], limit: int) -> list[list[str]]:
    """Divide a group of stage 3 into sub-groups; ``sizes``: elements per weight on one rank.

    A sub-group ends with the weight that reaches ``limit`` elements; a group within the limit is
    not divided.
    """
    if sum(sizes) <= limit:
        return [list(names)]
    groups: list[list[str]] = [[]]
    total = 0
    for name, size in zip(names, sizes, strict=True):
        if total >= limit:
            groups.append([])
            total = 0
        groups[-1].append(name)
        total += size
    return groups


def slices(
    names: Sequence[str], sizes: Mapping[str, int], length: int
) -> list[dict[str, tuple[int, int]]]:
    """Return, per partition of ``length`` elements, its weights: name -> (elements, start)."""
    partitions: list[dict[str, tuple[int, int]]] = []
    begin = 0
    for name in names:
        end = begin + sizes[name]
        for rank in range(begin // length, -(-end // length)):
            while len(partitions) <= rank:
                partitions.append({})
            first = max(begin, rank * length)
            last = min(end, (rank + 1) * length)
            partitions[rank][name] = (last - first, first - rank * length)
        begin = end
    return partitions


def merge_flat_groups(
    shapes: Shapes, flats: Sequence[Sequence[Tensor]], paddings: Sequence[Sequence[int]]
) -> dict[str, Tensor]:
    """Merge partitions of stages 1 and 2. ``flats`` are indexed by rank, then by group.

    ``paddings``: per group, the padding after each parameter. The buffer follows the order of
    ``shapes``, also with round_robin_gradients, for which the slice mappings in the same file are
    wrong (seen with 0.19.8).
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


def merge_each(shapes: Shapes, flats: Sequence[Tensor]) -> dict[str, Tensor]:
    """Merge partitions of stage 3. ``flats``: per rank, its concatenated partitions."""
    merged: dict[str, Tensor] = {}
    start, ranks = 0, len(flats)
    for group in shapes:
        for name, shape in group.items():
            length = -(-shape.numel() // ranks)
            full = torch.cat([flat[start : start + length] for flat in flats])
            merged[name] = _shaped(name, full[: shape.numel()], shape)
            start += length
    return merged


def merge_fragments(
    shapes: Mapping[str, torch.Size], fragments: Sequence[Mapping[str, Tensor]]
) -> dict[str, Tensor]:
    """Merge frozen parameters: complete in the first file, or one partition in each."""
    merged: dict[str, Tensor] = {}
    for name, shape in shapes.items():
        flat = torch.cat([fragment[name].flatten() for fragment in fragments])
        merged[name] = _shaped(name, flat[: shape.numel()], shape)
    return merged


def _shaped(name: str, flat: Tensor, shape: torch.Size) -> Tensor:
    if flat.numel() != shape.numel():
        raise CheckpointError(
            f"{name} has {flat.numel()} elements in the files instead of {shape.numel()}"
        )
    return flat.detach().view(shape)
