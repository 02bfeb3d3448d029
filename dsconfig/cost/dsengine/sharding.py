"""The sharding units of a run: which weights they have, and how long they are unsharded."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

from dsconfig import tiles
from dsconfig.cost.weights import Weight, Weights
from dsconfig.cost.workload import Workload
from dsconfig.facts.model import ModelTree, ModuleFact
from dsconfig.mesh import Mesh
from dsconfig.runtimes.effective import Precision, Zero
from dsconfig.unit_schedule import schedule
from dsconfig.units import Unit, cap_of, order_of_use, units

FP32 = Precision.FP32.bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """One unit. Sizes in elements, padded as ``fully_shard`` pads the first dimension."""

    weights: tuple[int, ...]
    block: int
    elements: int
    trainable: int
    held: int
    """Of ``elements``, those of one rank's shard."""
    owned: int
    """Of ``trainable``, those of one rank's shard."""
    gradients: int
    """Elements of its gradients, which are not padded."""
    last_gradient: int
    """Elements of its last trainable parameter."""
    copied: int
    """Elements that its largest copy of one parameter adds to those gathered by then."""
    copied_trained: int
    """The same if only trained parameters are copied."""
    alike: int
    """Index of the first unit whose weights have these sizes."""
    gathered: bool = False
    """Gathered around its use; otherwise always unsharded."""
    freed_after_forward: bool = False
    ahead: tuple[int, ...] = ()
    """Indices, in order of use, of the groups that are gathered while this one computes."""


@dataclass(frozen=True, slots=True)
class _Layout:
    """A model divided into units, independent of when they are gathered.

    ``used`` is the order of use in forward, ``sizes`` are elements by parameter name.
    """

    divided: tuple[Unit, ...]
    used: tuple[int, ...]
    sizes: Mapping[str, int]
    groups: tuple[Group, ...]
    """By index of the unit, as below stage 3."""
    scheduled: dict[Zero, tuple[Group, ...]]
    """In the order of use at stage 3, by the settings: a search asks for each of them often."""


class Sharing(NamedTuple):
    """Ranks that share one copy of the states, and of those of an expert."""

    ranks: int
    of_experts: int

    @classmethod
    def of(cls, mesh: Mesh) -> Self:
        return cls(mesh.state_ranks, mesh.expert_state_ranks)

    def of_weight(self, weight: Weight) -> int:
        """Return the ranks that share a tensor."""
        return self.of_experts if weight.expert else self.ranks


_LAYOUTS: dict[tuple[int, int, Sharing], tuple[tuple[Weight, ...], _Layout]] = {}


def groups_of(
    zero: Zero, model: ModelTree, weights: Weights, sharing: Sharing
) -> tuple[Group, ...]:
    """Return the units, in order of use in forward."""
    layout = _layout(model, weights, cap_of(zero, model), sharing)
    if zero.stage != 3:
        return tuple(layout.groups[index] for index in layout.used)
    if zero not in layout.scheduled:
        layout.scheduled[zero] = _scheduled(layout, zero)
    return layout.scheduled[zero]


def _scheduled(layout: _Layout, zero: Zero) -> tuple[Group, ...]:
    """Return the units at stage 3, in order of use in forward."""
    used = layout.used
    planned = schedule(layout.divided, layout.sizes, zero, used)
    position = {index: place for place, index in enumerate(used)}
    return tuple(
        replace(
            layout.groups[index],
            gathered=planned[index].gather,
            freed_after_forward=bool(planned[index].reshard_after_forward),
            ahead=tuple(
                position[other] for other in planned[index].prefetch if planned[other].gather
            ),
        )
        for index in used
    )


def _layout(model: ModelTree, weights: Weights, cap: int, sharing: Sharing) -> _Layout:
    """Cached by identity of the weights, so that a search over configs divides a model once."""
    key = (id(weights), cap, sharing)
    found = _LAYOUTS.get(key)
    if found is None or found[0] is not weights:
        if len(_LAYOUTS) > 64:
            _LAYOUTS.clear()
        found = _LAYOUTS[key] = (weights, _divide(model, weights, cap, sharing))
    return found[1]


def _divide(model: ModelTree, weights: Weights, cap: int, sharing: Sharing) -> _Layout:
    if model.root is None:
        made = tuple((tuple(indices), block) for block, indices in weights.segments)
        divided = tuple(_unit(weights, indices) for indices, _ in made)
        used = tuple(range(len(divided)))
    else:
        divided = units(model, cap)
        index_of = _indices(model.root)
        inside = [tuple(index_of[name] for name in unit.parameters) for unit in divided]
        made = tuple((each, weights[each[0]].block if each else -1) for each in inside)
        used = tuple(order_of_use(model, divided))
    sizes = {
        name: weights[index].elements
        for unit, (indices, _) in zip(divided, made, strict=True)
        for name, index in zip(unit.parameters, indices, strict=True)
    }
    first: dict[tuple[tuple[int, int, bool, bool], ...], int] = {}
    groups = tuple(
        _group(weights, sharing, indices, block, first.setdefault(_sizes(weights, indices), index))
        for index, (indices, block) in enumerate(made)
    )
    return _Layout(divided, used, sizes, groups, {})


def padded(weight: Weight, ranks: int) -> int:
    """Return the elements of a weight whose first dimension is rounded up to a multiple of the
    ranks."""
    return -(-weight.rows // ranks) * ranks * (weight.elements // max(1, weight.rows))


def _sizes(weights: Weights, indices: tuple[int, ...]) -> tuple[tuple[int, int, bool, bool], ...]:
    own = (weights[index] for index in indices)
    return tuple((each.elements, each.rows, each.trainable, each.expert) for each in own)


def _group(
    weights: Weights, sharing: Sharing, indices: tuple[int, ...], block: int, alike: int
) -> Group:
    own = [weights[index] for index in indices]
    trained = [weight for weight in own if weight.trainable]
    full = {id(weight): padded(weight, sharing.of_weight(weight)) for weight in own}
    held = {id(weight): full[id(weight)] // sharing.of_weight(weight) for weight in own}
    return Group(
        weights=indices,
        block=block,
        elements=sum(full[id(weight)] for weight in own),
        trainable=sum(full[id(weight)] for weight in trained),
        held=sum(held[id(weight)] for weight in own),
        owned=sum(held[id(weight)] for weight in trained),
        gradients=sum(weight.elements for weight in trained),
        last_gradient=trained[-1].elements if trained else 0,
        copied=_largest_copy(own, own),
        copied_trained=_largest_copy(own, trained),
        alike=alike,
    )


def _largest_copy(weights: Sequence[Weight], copied: Sequence[Weight]) -> int:
    """Return the extra elements if one rank copies parameters one by one; the last needs none."""
    those = set(map(id, copied))
    to_come = largest = 0
    for weight in reversed(weights):
        if id(weight) in those:
            largest = max(largest, weight.elements - to_come)
        to_come += weight.elements
    return largest


def _unit(weights: Weights, indices: tuple[int, ...]) -> Unit:
    return Unit(
        modules=(),
        elements=sum(weights[index].elements for index in indices),
        parameters=tuple(str(index) for index in indices),
    )


def _indices(root: ModuleFact) -> dict[str, int]:
    """Return the index of each parameter among the weights, by its first full name."""
    places: dict[str, int] = {}
    return {
        name: places.setdefault(tensor.storage or name, len(places))
        for name, tensor in root.named_parameters()
    }


def host_share(job: Workload) -> tuple[int, int]:
    """Return the elements of this rank updated (on the device, on the host) by an offloaded
    optimizer."""
    offload = job.effective.zero.offload_optimizer
    sharing = Sharing.of(job.mesh)
    sizes: dict[int, int] = {}
    for n, weight in enumerate(job.trainable):
        ranks = sharing.of_weight(weight)
        sizes[n] = padded(weight, ranks) // ranks
    stay, leave = tiles.host_share(sizes, offload.ratio if offload is not None else 0.0)
    return sum(stay.values()), sum(leave.values())


def copied_bytes(job: Workload, elements: int) -> int:
    """Return the bytes of fp32 copies while 16-bit weights, gradients and states are updated."""
    if job.master_width == FP32:
        return 0
    narrow = min(elements, tiles.COPIED_ELEMENTS, job.effective.zero.sub_group_size)
    states = job.optimizer.state_bytes(narrow, FP32) if job.state_width < FP32 else 0
    return 2 * FP32 * narrow + states


def shard_bytes(job: Workload) -> int:
    """Return the bytes of all of this rank's shards."""
    return job.owned * job.shard_width + job.held_frozen * job.width
