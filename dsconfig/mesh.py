"""Ranks along five axes: the only place where they are multiplied, divided and grouped.

Outermost first: pipeline x replicate x shard x sequence x tensor. Ranks are numbered along the last
axis first, so those that communicate most (tensor, then sequence) are neighbors within a node, as
in Narayanan et al. 2021 (arXiv:2104.04473, section 3). Pure: independent of config and model.
"""

from dataclasses import dataclass, fields
from itertools import product
from math import prod
from typing import Self

PER_NODE = 8
"""GPUs per node if not specified: those of an HGX board."""
MOST_RANKS = 10_000_000
"""Larger than any machine; a higher number is a typing error."""


def nodes_for(world_size: int) -> int:
    """Return the default number of nodes for this many ranks."""
    return -(-world_size // PER_NODE)


def ranks_per_node(world_size: int, nodes: int | None) -> int:
    """Return the ranks of the fullest node."""
    return max(1, -(-world_size // (nodes or max(1, nodes_for(world_size)))))


def data_parallel_ranks(
    world_size: int, *, tensor: int = 1, sequence: int = 1, pipeline: int = 1
) -> int:
    """Return the ranks that see different samples; those of an incomplete replica
    are not counted."""
    return world_size // (tensor * sequence * pipeline)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """Number of ranks along each axis.

    The states of a model are divided over ``shard`` x ``sequence`` ranks; ``replicate`` copies of
    them exist. Ranks along ``sequence`` have different tokens of the same samples.
    """

    pipeline: int = 1
    replicate: int = 1
    shard: int = 1
    sequence: int = 1
    tensor: int = 1

    @classmethod
    def over(
        cls,
        world_size: int,
        *,
        sharded: bool,
        group: int = 0,
        tensor: int = 1,
        sequence: int = 1,
        pipeline: int = 1,
    ) -> Self:
        """Divide ``world_size`` ranks. Unless ``sharded`` every rank holds all states.

        ``group``: ranks that share one copy of the states; 0 or less, or more than there are: all
        of them.
        """
        data = max(
            1,
            data_parallel_ranks(world_size, tensor=tensor, sequence=sequence, pipeline=pipeline),
        )
        shard = data if sharded else 1
        if sharded and group > 0:
            shard = min(data, max(1, group // sequence))
        return cls(
            pipeline=pipeline,
            replicate=data // shard,
            shard=shard,
            sequence=sequence,
            tensor=tensor,
        )

    @property
    def axes(self) -> dict[str, int]:
        """Return the ranks by axis, outermost first."""
        return {axis.name: getattr(self, axis.name) for axis in fields(self)}

    @property
    def world_size(self) -> int:
        return prod(self.axes.values())

    @property
    def data_parallel(self) -> int:
        """Return the ranks that see different samples."""
        return self.replicate * self.shard

    @property
    def state_ranks(self) -> int:
        """Return the ranks over which one copy of the model states is divided."""
        return self.shard * self.sequence

    @property
    def gradient_ranks(self) -> int:
        """Return the ranks whose gradients are averaged: all with the same part of the model."""
        return self.replicate * self.state_ranks

    def part(self, elements: int) -> int:
        """Return the elements of the largest shard over ``state_ranks``."""
        return -(-elements // self.state_ranks)

    @property
    def coordinates(self) -> tuple[tuple[int, ...], ...]:
        """Return the position of every rank along ``axes``."""
        return tuple(product(*map(range, self.axes.values())))

    def groups(self, *axes: str) -> tuple[tuple[int, ...], ...]:
        """Return the groups of ranks that differ only along ``axes``: every rank is
        in one of them."""
        found: dict[tuple[int, ...], list[int]] = {}
        for rank, coordinate in enumerate(self.coordinates):
            others = tuple(
                at for name, at in zip(self.axes, coordinate, strict=True) if name not in axes
            )
            found.setdefault(others, []).append(rank)
        return tuple(map(tuple, found.values()))
