"""The collectives of one optimizer step, as one rank takes part in them.

Step time and traffic are sums over the same records. Messages of a few bytes (norms, flags) are not
counted. Below stage 3 gradients are reduced, once a step or in every micro step, and updated
weights gathered once; at stage 3 both in every micro step (Rajbhandari et al. 2020,
arXiv:1910.02054, section 7).
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from dsconfig import tiles
from dsconfig.cost.activations import Recompute, experts_at_work, recompute_of
from dsconfig.cost.dsengine.sharding import Sharing, groups_of
from dsconfig.cost.weights import packing_of, weights_of
from dsconfig.facts.facts import Facts
from dsconfig.mesh import Mesh
from dsconfig.runtimes.base import Runtime, runtime_of
from dsconfig.runtimes.effective import Effective
from dsconfig.runtimes.storage import storage_of


class CollectiveKind(StrEnum):
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_REDUCE = "all_reduce"
    ALL_TO_ALL = "all_to_all"
    SEND = "send"


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """``count`` equal collectives of a step, of ``bytes`` each: the full tensor of a group."""

    axis: str
    kind: CollectiveKind
    ranks: int
    bytes: float
    count: int
    overlaps: bool = False
    """Whether computation can hide it."""

    @property
    def sent(self) -> float:
        """Return the bytes that a rank sends in a step, by ring algorithms."""
        if self.kind is CollectiveKind.SEND:
            return self.bytes * self.count
        passes = 2 if self.kind is CollectiveKind.ALL_REDUCE else 1
        return passes * self.bytes * self.count * (self.ranks - 1) / self.ranks


class UnitVolume(NamedTuple):
    """Elements of parameters that are gathered and reduced together, padded as they are sent."""

    elements: int
    trained: int
    gathers: int = 0
    """In each micro step; 0: it stays unsharded and is gathered after each update."""
    regathers: int = 0
    """In each micro step, over the ranks of hpZ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume:
    """What one rank exchanges: ``units``, and the hidden states of ``layers`` layers.

    ``hidden_bytes``: of one micro batch and rank; layers that are recomputed count again.
    ``routed``: layers with experts, times the experts that each token is sent to.
    """

    units: tuple[UnitVolume, ...]
    reduces_every_pass: bool
    sum_bytes: int
    """Of an element of the shards that replicas sum."""
    layers: float = 0.0
    hidden_bytes: float = 0.0
    routed: float = 0.0


def traffic(found: Iterable[Collective]) -> Mapping[str, int]:
    """Return bytes sent per rank and step, by kind."""
    sent: Counter[str] = Counter()
    for collective in found:
        sent[collective.kind.value] += collective.sent  # pyright: ignore[reportArgumentType]
    return {kind: round(amount) for kind, amount in sent.items() if amount}


def collectives(effective: Effective, mesh: Mesh, volume: Volume) -> tuple[Collective, ...]:
    """Return the collectives of one step."""
    steps = effective.batch.accumulation if effective.batch else 1
    found = [*_of_layers(mesh, volume, steps)]
    for unit, count in Counter(volume.units).items():
        found += _of_unit(effective, mesh, unit, volume, steps, count)
    return tuple(collective for collective in found if collective.ranks > 1 and collective.bytes)


def _of_unit(
    effective: Effective, mesh: Mesh, unit: UnitVolume, volume: Volume, steps: int, count: int
) -> Iterator[Collective]:
    """Yield the collectives of ``count`` equal units."""
    zero, numerics = effective.zero, effective.numerics
    wire = numerics.communication_dtype.bytes
    axis, ranks = "states", mesh.state_ranks
    if zero.stage == 0:
        yield Collective(
            axis="gradients",
            kind=CollectiveKind.ALL_REDUCE,
            ranks=mesh.gradient_ranks,
            bytes=unit.trained * wire,
            count=count,
            overlaps=True,
        )
        return
    # A unit that is kept for backward sends as much as at stages 1 and 2 and is counted like there,
    # so that bytes order the stages (docs/internals/decisions/0503).
    is_kept = unit.gathers == 1 and not unit.regathers
    gathered = _gathered_bytes(effective, unit)
    regathered = {"hpz": (zero.hpz_partition_size, unit.regathers), axis: (ranks, unit.gathers)}
    for group, (sharing, gathers) in regathered.items():
        yield Collective(
            axis=group,
            kind=CollectiveKind.ALL_GATHER,
            ranks=sharing,
            bytes=gathered if group == axis else unit.elements * numerics.precision.bytes,
            count=count * gathers * steps,
            overlaps=not is_kept,
        )
    if not unit.gathers:  # updated weights, after the step
        yield Collective(
            axis=axis,
            kind=CollectiveKind.ALL_GATHER,
            ranks=ranks,
            bytes=unit.trained * numerics.precision.bytes,
            count=count,
        )
    reductions = count * (steps if volume.reduces_every_pass else 1)
    yield Collective(
        axis=axis,
        kind=CollectiveKind.REDUCE_SCATTER,
        ranks=ranks,
        bytes=tiles.quantized_bytes(unit.trained, tiles.REDUCED_BITS)
        if zero.stage == 3 and zero.quantized_gradients
        else unit.trained * wire,
        count=reductions,
        overlaps=zero.overlap_comm,
    )
    yield Collective(
        axis="replicate",
        kind=CollectiveKind.ALL_REDUCE,
        ranks=mesh.replicate,
        bytes=unit.trained * volume.sum_bytes / ranks,
        count=reductions,
        overlaps=zero.overlap_comm,
    )


def _gathered_bytes(effective: Effective, unit: UnitVolume) -> int:
    """Return the bytes of one gather of a unit that is gathered around its use."""
    zero = effective.zero
    quantized = 0
    if zero.stage == 3 and unit.gathers:
        frozen = (unit.elements - unit.trained) * zero.quantized_frozen_weights
        quantized = unit.elements if zero.quantized_weights else frozen
    exact = (unit.elements - quantized) * effective.numerics.precision.bytes
    return exact + tiles.quantized_bytes(quantized, tiles.GATHERED_BITS)


def _of_layers(mesh: Mesh, volume: Volume, steps: int) -> Iterator[Collective]:
    """Yield what is exchanged within layers or sequences, and between stages.

    Tensor parallelism all-reduces twice in forward and twice in backward (Shoeybi et al. 2019,
    arXiv:1909.08053); Ulysses sends q, k, v and the output through an all-to-all, and back
    (Jacobs et al. 2023, arXiv:2309.14509); experts get tokens and return them, and back (Lepikhin
    et al. 2020, arXiv:2006.16668).
    """
    for axis, kind, ranks, hidden in (
        ("tensor", CollectiveKind.ALL_REDUCE, mesh.tensor, 4 * volume.layers),
        ("sequence", CollectiveKind.ALL_TO_ALL, mesh.sequence, 8 * volume.layers),
        ("expert", CollectiveKind.ALL_TO_ALL, mesh.expert, 4 * volume.routed),
        ("pipeline", CollectiveKind.SEND, mesh.pipeline, 2),
    ):
        amount = hidden * volume.hidden_bytes
        yield Collective(axis=axis, kind=kind, ranks=ranks, bytes=amount, count=steps)


def volume_of(
    effective: Effective,
    facts: Facts,
    mesh: Mesh,
    *,
    runtime: str | Runtime = "dsengine",
    tokens: float = 0,
) -> Volume:
    """Return what a step exchanges; ``tokens``: of one micro batch and rank."""
    model, zero = facts.model, effective.zero
    assert model is not None
    degrees, shape = facts.degrees, facts.architecture
    recomputes = recompute_of(effective, facts) is Recompute.FULL
    weights = weights_of(model, degrees, packing_of(effective, facts))
    hpz = zero.hpz_partition_size > 1
    runs_deepspeed = runtime_of(runtime).runs_deepspeed
    if runs_deepspeed:
        # Each recomputation gathers again, before backward does.
        gathers = (1 + recomputes) if zero.stage == 3 else 0
        units = [
            UnitVolume(
                weights.elements // degrees.pipeline,
                weights.trained // degrees.pipeline,
                gathers=int(zero.stage == 3) + gathers * (not hpz),
                regathers=gathers * hpz,
            )
        ]
    else:
        units = [
            UnitVolume(
                group.elements // degrees.pipeline,  # of an average stage
                group.trainable // degrees.pipeline,
                gathers=int(group.gathered) + (group.freed_after_forward and not hpz),
                regathers=int(group.freed_after_forward and hpz),
            )
            for group in groups_of(zero, model, weights, Sharing.of(mesh))
        ]
    reduces_every_pass = zero.stage >= 2 if runs_deepspeed else zero.reduces_every_pass
    sums = storage_of(effective, mesh).gradient
    if runs_deepspeed and not reduces_every_pass:
        sums = max(sums, effective.numerics.grad_accum_dtype, key=lambda dtype: dtype.bytes)
    again = (1.5 if recomputes else 1.0) / degrees.pipeline
    layers = shape.layers * again if shape else 0.0
    routed = shape.mixed_blocks * experts_at_work(shape) * again if shape else 0.0
    width = effective.numerics.precision.bytes
    return Volume(
        units=tuple(units),
        reduces_every_pass=reduces_every_pass,
        sum_bytes=sums.bytes,
        layers=layers,
        routed=routed,
        hidden_bytes=tokens * shape.hidden_size * width if shape else 0.0,
    )
