"""The sharding units of a run as the simulation needs them: which weights, and how long whole."""

from dataclasses import dataclass

from dsconfig.memory.model_pass import stretches
from dsconfig.memory.workload import Weight, Workload
from dsconfig.units import (
    Unit,
    cap_of,
    gathered_ahead,
    kept_until_backward,
    order_of_use,
    persistent_units,
    units,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """One unit. Sizes in elements, padded as ``fully_shard`` pads the first dimension."""

    weights: tuple[int, ...]
    block: int
    whole: int
    trainable: int
    last_gradient: int
    """Elements of its last trainable parameter."""
    gathered: bool = False
    """Gathered around its use; else whole at rest."""
    freed_after_forward: bool = False
    ahead: tuple[int, ...] = ()
    """Places, in order of use, of the groups that are gathered while this one computes."""


def groups_of(job: Workload) -> tuple[Group, ...]:
    """Units in order of use in forward."""
    model, zero = job.model, job.effective.zero
    made: list[tuple[list[int], int]]
    if model.root is None:
        made = [(indices, block) for block, indices in stretches(job.weights)]
        divided = [_unit(job, indices) for indices, _ in made]
        used = list(range(len(divided)))
    else:
        divided = list(units(model, cap_of(zero, model)))
        index_of = _indices(job)
        made = []
        for unit in divided:
            indices = [index_of[name] for name in unit.parameters]
            made.append((indices, job.weights[indices[0]].block if indices else -1))
        used = order_of_use(model, divided)
    if zero.stage != 3:
        return tuple(_group(job, *made[index]) for index in used)
    sizes = {
        name: job.weights[index].elements
        for unit, (indices, _) in zip(divided, made, strict=True)
        for name, index in zip(unit.parameters, indices, strict=True)
    }
    persistent = persistent_units(divided, sizes, zero)
    kept = kept_until_backward(divided, used, zero)
    place = {index: place for place, index in enumerate(used)}
    ahead = {index: gathered_ahead(divided, used, index, zero) for index in used}
    return tuple(
        _group(
            job,
            *made[index],
            gathered=index not in persistent,
            freed=index not in persistent and index not in kept,
            ahead=tuple(place[each] for each in ahead[index] if each not in persistent),
        )
        for index in used
    )


def padded(weight: Weight, ranks: int) -> int:
    """Elements of a weight whose first dimension is rounded up to a multiple of the ranks."""
    return -(-weight.rows // ranks) * ranks * (weight.elements // max(1, weight.rows))


def _group(
    job: Workload,
    indices: list[int],
    block: int,
    *,
    gathered: bool = False,
    freed: bool = False,
    ahead: tuple[int, ...] = (),
) -> Group:
    weights = [job.weights[index] for index in indices]
    trained = [weight for weight in weights if weight.trainable]
    return Group(
        weights=tuple(indices),
        block=block,
        whole=sum(padded(weight, job.ranks) for weight in weights),
        trainable=sum(padded(weight, job.ranks) for weight in trained),
        last_gradient=trained[-1].elements if trained else 0,
        gathered=gathered,
        freed_after_forward=freed,
        ahead=ahead,
    )


def _unit(job: Workload, indices: list[int]) -> Unit:
    weights = [job.weights[index] for index in indices]
    return Unit(
        modules=(),
        elements=sum(weight.elements for weight in weights),
        trainable_elements=sum(weight.elements for weight in weights if weight.trainable),
        parameters=tuple(str(index) for index in indices),
    )


def _indices(job: Workload) -> dict[str, int]:
    """Place of each parameter in the workload, by its first full name."""
    assert job.model.root is not None
    found: dict[str, int] = {}
    storages: dict[str, int] = {}
    for name, tensor in job.model.root.named_parameters():
        storage = tensor.storage or name
        if storage not in storages:
            storages[storage] = len(storages)
        found[name] = storages[storage]
    return found
