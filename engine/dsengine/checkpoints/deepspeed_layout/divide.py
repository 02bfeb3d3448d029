"""From tensors by name to DeepSpeed's flat partitions: what ``merge`` puts together."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

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
