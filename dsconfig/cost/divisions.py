"""Parallel degrees that a search may try, and why each other one is not tried."""

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from dsconfig.facts.facts import Facts
from dsconfig.facts.model import Architecture
from dsconfig.mesh import UNDIVIDED, Degrees, nearest_degree, ranks_per_node
from dsconfig.runtimes.base import Runtime
from dsconfig.runtimes.capabilities import (
    AUTOEP_FAMILIES,
    AXES,
    label_of,
    refused_by_autotp,
    support,
)

LARGEST_SEQUENCE = 64
"""Largest sequence-parallel degree tried: Ulysses exchanges heads, and few models have more."""


class Rejected(NamedTuple):
    """A degree that is not chosen; ``degree`` is None for all degrees of the axis."""

    axis: str
    degree: int | None
    reason: str

    @property
    def label(self) -> str:
        return f"{self.axis} parallel" + ("" if self.degree is None else f" {self.degree}")


def is_open(facts: Facts) -> bool:
    """Return whether no flag or file sets a degree."""
    return facts.degrees == UNDIVIDED and not any(
        f"{axis}_parallel" in facts.origins for axis in AXES
    )


def degrees_of(axis: str, facts: Facts) -> Iterator[int]:
    """Yield the degrees of an axis for these ranks, ascending: tensor within a node, pipeline
    across nodes."""
    ranks, shape = facts.world_size or 1, facts.architecture
    most = {
        "sequence": min(ranks, LARGEST_SEQUENCE),
        "tensor": ranks_per_node(ranks, facts.nodes),
        "expert": min(ranks, (shape.experts if shape else None) or 1),
        "pipeline": facts.nodes or 1,
    }[axis]
    degree = 2
    while degree <= most:
        yield degree
        degree *= 2


def why_not(axis: str, degree: int, facts: Facts) -> str:
    """Return why a degree is impossible for this model on these ranks; "" if it is possible."""
    ranks = facts.world_size or 1
    found = replace(UNDIVIDED, **{axis: degree})
    if not found.divide(ranks):
        return f"{ranks} ranks are not divisible by it; use {nearest_degree(degree, ranks)}"
    total = facts.training.global_batch_size if facts.training else None
    groups = found.samples(ranks)
    if total is not None and total % groups:
        return f"the global batch of {total} is not a multiple of {groups} data-parallel ranks"
    shape = facts.architecture
    return "" if shape is None else _OBSTACLES[axis](degree, shape, facts)


def why_none(axis: str, facts: Facts, program: Runtime) -> str:
    """Return why no degree of an axis is possible; "" if one may be."""
    reason = support(program, axis).reason
    if reason:
        return f"not executed by {program.name}: {reason}"
    shape = facts.architecture
    family = shape.family if shape is not None else None
    if axis == "tensor" and (refused := refused_by_autotp(family)):
        return f"AutoTP refuses {family}: {refused}"
    if axis == "expert" and (shape is None or not shape.experts):
        return "the model has no experts"
    if axis == "expert" and family not in AUTOEP_FAMILIES:
        return f"AutoEP has no preset for {family}: it would need expert_parallel patterns"
    if axis == "sequence" and shape is not None and recurrent_layers(shape):
        return f"{recurrent_layers(shape)} layers are not attention and need every token"
    if axis == "pipeline" and (facts.nodes or 1) < 2:
        return "there is one node"
    return ""


def possible(facts: Facts, program: Runtime) -> list[Facts]:
    """Return the facts with each single degree that the program and the model allow, ascending by
    axis; none if a flag or file sets one."""
    if not is_open(facts) or (facts.world_size or 1) == 1:
        return []
    return [
        with_degree(facts, axis, degree)
        for axis in AXES
        if not why_none(axis, facts, program)
        for degree in degrees_of(axis, facts)
        if not why_not(axis, degree, facts)
    ]


def recurrent_layers(shape: Architecture) -> int:
    """Return the blocks with a mixer that is not attention."""
    return sum(
        count for block, count in shape.kinds.items() if len(block.mixers) > block.attentions
    )


def _heads(degree: int, shape: Architecture, facts: Facts) -> str:
    if shape.heads % degree:
        use = nearest_degree(degree, shape.heads)
        return f"{shape.heads} attention heads are not divisible by it; use {use}"
    return ""


def _sequence(degree: int, shape: Architecture, facts: Facts) -> str:
    heads, length = shape.kv_heads or shape.heads, facts.sequence_length
    if length is not None and length % degree:
        use = nearest_degree(degree, length)
        return f"{length} tokens are not divisible by it; use {use}"
    if heads % degree and degree % heads:
        use = nearest_degree(degree, heads)
        return f"{heads} key/value heads and {degree} ranks: one must divide the other; use {use}"
    return _heads(degree, shape, facts)


def _tensor(degree: int, shape: Architecture, facts: Facts) -> str:
    heads = shape.kv_heads or shape.heads
    if heads % degree:
        use = nearest_degree(degree, heads)
        return f"{heads} key/value heads are not divisible by it; use {use}"
    return _heads(degree, shape, facts)


def _expert(degree: int, shape: Architecture, facts: Facts) -> str:
    experts = shape.experts or 1
    if experts % degree:
        return f"{experts} experts are not divisible by it; use {nearest_degree(degree, experts)}"
    return ""


def _pipeline(degree: int, shape: Architecture, facts: Facts) -> str:
    if shape.layers < degree:
        return f"{shape.layers} layers cannot fill it; use {shape.layers}"
    return ""


_OBSTACLES = {"sequence": _sequence, "tensor": _tensor, "expert": _expert, "pipeline": _pipeline}


def with_degree(facts: Facts, axis: str, degree: int) -> Facts:
    """Return the facts with one degree more."""
    return replace(facts, degrees=replace(facts.degrees, **{axis: degree}))


def described(degrees: Degrees) -> str:
    """Return ``sequence parallel 8``; ``data parallel`` if nothing is divided."""
    return label_of(degrees).removesuffix(", ") or "data parallel"
