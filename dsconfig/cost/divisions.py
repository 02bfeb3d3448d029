"""Parallel degrees that a search may try, and why each other one is not tried."""

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from dsconfig.facts.facts import Facts
from dsconfig.facts.model import Architecture
from dsconfig.facts.tensor_plans import splits_experts, splits_heads
from dsconfig.mesh import UNDIVIDED, Degrees, divisors, nearest_degree, ranks_per_node
from dsconfig.runtimes.base import Runtime
from dsconfig.runtimes.capabilities import (
    AXES,
    label_of,
    refused_experts,
    refused_plan,
    refused_sequence,
    requires_equal_parts,
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


class Indivisible(NamedTuple):
    """A degree that does not divide the model or its sequence; ``use``: the nearest that does."""

    axis: str
    degree: int
    problem: str
    use: int
    of_length: bool
    """Whether it is the sequence that is not divisible."""


def is_open(facts: Facts) -> bool:
    """Return whether no flag or file sets a degree."""
    return facts.degrees == UNDIVIDED and not any(
        f"{axis}_parallel" in facts.origins for axis in AXES
    )


def degrees_of(axis: str, facts: Facts) -> list[int]:
    """Return the degrees of an axis that divide these ranks, ascending: tensor within a node,
    pipeline across nodes."""
    ranks, shape = facts.world_size or 1, facts.architecture
    most = {
        "sequence": LARGEST_SEQUENCE,
        "tensor": ranks_per_node(ranks, facts.nodes),
        "expert": (shape.experts if shape else None) or 1,
        "pipeline": facts.nodes or 1,
    }[axis]
    return [degree for degree in divisors(ranks) if 1 < degree <= most]


def why_not(axis: str, facts: Facts, program: Runtime | None = None) -> str:
    """Return why the degree of an axis is impossible for the model, the batch and the other
    degrees of these facts, with the nearest possible one; "" if it is possible.

    ``program``: may require equal parts of an MLP too."""
    shape = facts.architecture
    equal = axis == "tensor" and program is not None and requires_equal_parts(program, axis)
    for name, width in _split_widths(shape) if equal and shape is not None else ():
        if width % facts.degrees.tensor:
            return f"{name} width of {width} is not divisible by it"
    obstacle = _obstacle(axis, facts)
    near = nearest(axis, facts) if obstacle else 1
    is_possible = obstacle and not _obstacle(axis, with_degree(facts, axis, near))
    return f"{obstacle}; use {near}" if is_possible else obstacle


def _split_widths(shape: Architecture) -> Iterator[tuple[str, int]]:
    """Yield the inner widths that layers split over ranks have."""
    if shape.mixed_blocks < shape.layers:
        yield "an MLP", shape.dense_width or shape.width_of_mlp
    if shape.mixed_blocks and splits_experts(shape.family):
        yield "an expert", shape.expert_size or shape.width_of_mlp
    if shape.shared_width:
        yield "a shared expert", shape.shared_width


def nearest(axis: str, facts: Facts) -> int:
    """Return the degree of an axis nearest to that of the facts that is possible; else 1."""
    shape = facts.architecture
    whole = facts.world_size or (_parts(axis, shape) if shape is not None else 1)
    return nearest_degree(
        getattr(facts.degrees, axis),
        whole,
        lambda degree: not _obstacle(axis, with_degree(facts, axis, degree)),
    )


def indivisible(facts: Facts) -> Iterator[Indivisible]:
    """Yield the degrees above 1 that do not divide heads, experts or the sequence."""
    shape, length = facts.architecture, facts.sequence_length
    for axis in ("sequence", "tensor", "expert"):
        degree = getattr(facts.degrees, axis)
        of_length = axis == "sequence" and _length(degree, length)
        problem = of_length or (_OBSTACLES[axis](facts.degrees, shape) if shape is not None else "")
        if degree > 1 and problem:
            yield Indivisible(axis, degree, problem, nearest(axis, facts), bool(of_length))


def _obstacle(axis: str, facts: Facts) -> str:
    ranks, degrees = facts.world_size, facts.degrees
    total = facts.training.global_batch_size if facts.training else None
    if ranks is not None and not degrees.divide(ranks):
        return f"{ranks} ranks are not divisible by it"
    if ranks is not None and total is not None and total % degrees.samples(ranks):
        groups = degrees.samples(ranks)
        return f"the global batch of {total} is not a multiple of {groups} data-parallel ranks"
    if axis == "sequence" and (problem := _length(degrees.sequence, facts.sequence_length)):
        return problem
    shape = facts.architecture
    return "" if shape is None else _OBSTACLES[axis](degrees, shape)


def why_none(axis: str, facts: Facts, program: Runtime) -> str:
    """Return why no degree of an axis is possible; "" if one may be."""
    reason = support(program, axis).reason
    if reason:
        return f"not executed by {program.name}: {reason}"
    shape = facts.architecture
    family = shape.family if shape is not None else None
    if axis == "tensor" and (refused := _frozen(facts) or refused_plan(program, family)):
        return refused
    if axis == "expert" and (shape is None or not shape.mixed_blocks):
        return "the model has no experts"
    if axis == "expert" and (refused := refused_experts(program, family)):
        return refused
    if axis == "sequence" and shape is not None and recurrent_layers(shape):
        return f"{recurrent_layers(shape)} layers are not attention and need every token"
    if axis == "sequence" and (refused := refused_sequence(program, family)):
        return refused
    if axis == "pipeline" and (facts.nodes or 1) < 2:
        return "there is one node"
    return ""


def _frozen(facts: Facts) -> str:
    """Return why layers cannot be split over tensor ranks; "" if all of their weights are trained.

    AutoTP slices the weight of every ``nn.Linear``, that of an adapter or a packed one included
    (``_replace_module`` of 0.19.8); dsengine finds the layers of a plan by their full names."""
    model = facts.model
    if facts.base_weights is not None:
        return "quantized layers cannot be split"
    frozen = model is not None and model.trainable < model.parameters
    return "layers with frozen weights or adapters cannot be split" if frozen else ""


def possible(facts: Facts, program: Runtime) -> list[Facts]:
    """Return the facts with each single degree that the program and the model allow, ascending by
    axis; none if a flag or file sets one."""
    if not is_open(facts) or (facts.world_size or 1) == 1:
        return []
    return [
        divided
        for axis in AXES
        if not why_none(axis, facts, program)
        for divided in (with_degree(facts, axis, each) for each in degrees_of(axis, facts))
        if not why_not(axis, divided, program)
    ]


def recurrent_layers(shape: Architecture) -> int:
    """Return the blocks with a mixer that is not attention."""
    return sum(
        count for block, count in shape.kinds.items() if len(block.mixers) > block.attentions
    )


def _parts(axis: str, shape: Architecture) -> int:
    """Return how many parts of a model an axis divides."""
    parts = {"expert": shape.experts, "pipeline": shape.layers}
    return parts.get(axis, shape.heads) or 1


def _length(degree: int, length: int | None) -> str:
    return f"{length} tokens are not divisible by it" if length and length % degree else ""


def _sequence(degrees: Degrees, shape: Architecture) -> str:
    degree = degrees.sequence
    heads = shape.heads // degrees.tensor
    kv_heads = max(1, (shape.kv_heads or shape.heads) // degrees.tensor)
    if kv_heads % degree and degree % kv_heads:
        return f"{kv_heads} key/value heads are neither divisible by it nor a divisor of it"
    return f"{heads} attention heads are not divisible by it" if heads % degree else ""


def _tensor(degrees: Degrees, shape: Architecture) -> str:
    if not splits_heads(shape.family):
        return ""
    for heads, kind in ((shape.kv_heads or shape.heads, "key/value"), (shape.heads, "attention")):
        if heads % degrees.tensor:
            return f"{heads} {kind} heads are not divisible by it"
    return ""


def _expert(degrees: Degrees, shape: Architecture) -> str:
    experts = shape.experts or 1
    if experts == 1 < degrees.expert:
        return "the model has no experts"
    return f"{experts} experts are not divisible by it" if experts % degrees.expert else ""


def _pipeline(degrees: Degrees, shape: Architecture) -> str:
    return f"{shape.layers} layers cannot fill it" if shape.layers < degrees.pipeline else ""


_OBSTACLES = {"sequence": _sequence, "tensor": _tensor, "expert": _expert, "pipeline": _pipeline}


def with_degree(facts: Facts, axis: str, degree: int) -> Facts:
    """Return the facts with another degree of an axis."""
    return replace(facts, degrees=replace(facts.degrees, **{axis: degree}))


def described(degrees: Degrees) -> str:
    """Return ``sequence parallel 8``; ``data parallel`` if nothing is divided."""
    return label_of(degrees).removesuffix(", ") or "data parallel"
