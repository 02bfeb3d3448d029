"""Ranks along five axes: the only place where they are multiplied, divided and grouped.

Outermost first: pipeline x replicate x shard x sequence x tensor. Ranks are numbered along the last
axis first, so those that communicate most (tensor, then sequence) are neighbors within a node, as
in Narayanan et al. 2021 (arXiv:2104.04473, section 3). Pure: independent of config and model.

[Note: experts] Experts divide no further ranks: replicate x shard, the ranks with different
samples, are also expert_data x expert, neighbors along ``expert`` (DeepSpeed's
``groups._create_expert_and_data_parallel``). Each of ``expert`` ranks has a part of the experts,
of which ``expert_data`` copies exist.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Self

PER_NODE = 8
"""GPUs per node if not specified: those of an HGX board."""
AXES = ("pipeline", "replicate", "shard", "sequence", "tensor")
MOST_RANKS = 10_000_000
"""Larger than any machine; a higher number is a typing error."""


def nodes_for(world_size: int) -> int:
    """Return the default number of nodes for this many ranks."""
    return -(-world_size // PER_NODE)


def ranks_per_node(world_size: int, nodes: int | None) -> int:
    """Return the ranks of the fullest node."""
    return max(1, -(-world_size // (nodes or max(1, nodes_for(world_size)))))


def divisors(number: int) -> list[int]:
    """Return all divisors, ascending."""
    small = [each for each in range(1, int(number**0.5) + 1) if number % each == 0]
    return small + [number // each for each in reversed(small) if each * each != number]


def nearest_degree(
    degree: int, number: int, is_valid: Callable[[int], bool] = lambda _: True
) -> int:
    """Return the valid divisor of ``number`` above 1 nearest to ``degree``; the smaller of two,
    else 1."""
    valid = (each for each in divisors(number)[1:] if is_valid(each))
    return min(valid, key=lambda each: (abs(each - degree), each), default=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Degrees:
    """Ranks over which a sample, a model and its experts are divided."""

    tensor: int = 1
    sequence: int = 1
    pipeline: int = 1
    expert: int = 1
    """Of the ranks with different samples. [Note: experts]"""

    @property
    def per_sample(self) -> int:
        """Return the ranks that work on the same samples."""
        return self.tensor * self.sequence * self.pipeline

    @property
    def per_model(self) -> int:
        """Return the parts into which the layers are divided."""
        return self.tensor * self.pipeline

    def samples(self, world_size: int) -> int:
        """Return the ranks that see different samples; those of an incomplete replica are not
        counted."""
        return world_size // self.per_sample

    def divide(self, world_size: int) -> bool:
        """Return whether so many ranks have no incomplete replica, and groups of experts."""
        samples = self.samples(world_size)
        return world_size % self.per_sample == 0 and samples % self.expert == 0


UNDIVIDED = Degrees()


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
    expert: int = 1
    """Of replicate x shard ranks: not an axis of its own. [Note: experts]"""

    @classmethod
    def over(
        cls, world_size: int, degrees: Degrees = UNDIVIDED, *, sharded: bool, group: int = 0
    ) -> Self:
        """Divide ``world_size`` ranks. Unless ``sharded`` every rank holds all states.

        ``group``: ranks that share one copy of the states; 0 or less, or more than there are: all
        of them.
        """
        data = max(1, degrees.samples(world_size))
        shard = data if sharded else 1
        if sharded and group > 0:
            shard = min(data, max(1, group // degrees.sequence))
        return cls(
            pipeline=degrees.pipeline,
            replicate=data // shard,
            shard=shard,
            sequence=degrees.sequence,
            tensor=degrees.tensor,
            expert=degrees.expert,
        )

    @property
    def axes(self) -> dict[str, int]:
        """Return the ranks by axis, outermost first."""
        return {name: getattr(self, name) for name in AXES}

    @property
    def expert_axes(self) -> dict[str, int]:
        """Return the same ranks in the same order by the axes of experts. [Note: experts]"""
        return {
            "pipeline": self.pipeline,
            "expert_data": self.expert_data,
            "expert": self.expert,
            "sequence": self.sequence,
            "tensor": self.tensor,
        }

    @property
    def expert_data(self) -> int:
        """Return the ranks with the same experts: those that average their gradients."""
        return self.data_parallel // self.expert

    @property
    def world_size(self) -> int:
        return prod(self.axes.values())

    @property
    def splits_weights(self) -> bool:
        """Whether ranks have different parts of a weight before states are sharded."""
        return self.tensor > 1 or self.expert > 1

    @property
    def data_parallel(self) -> int:
        """Return the ranks that see different samples."""
        return self.replicate * self.shard

    @property
    def state_ranks(self) -> int:
        """Return the ranks over which one copy of the model states is divided."""
        return self.shard * self.sequence

    @property
    def expert_state_ranks(self) -> int:
        """Return the ranks over which one copy of the states of an expert is divided."""
        return min(self.shard, self.expert_data) * self.sequence

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
        """Return the groups of ranks that differ only along ``axes``, of either view: every rank
        is in one of them."""
        found: dict[tuple[int, ...], list[int]] = {}
        view = self.axes if set(axes) <= self.axes.keys() else self.expert_axes
        for rank, coordinate in enumerate(product(*map(range, view.values()))):
            place = zip(view, coordinate, strict=True)
            others = tuple(index for axis, index in place if axis not in axes)
            found.setdefault(others, []).append(rank)
        return tuple(map(tuple, found.values()))
