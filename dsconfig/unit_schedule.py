"""Schedule of gathering, resharding and prefetching the units of a model.

At stage 3 a unit is gathered around its use. Three keys, all counted in elements as in DeepSpeed,
change this:

- ``stage3_param_persistence_threshold``: a unit with only smaller parameters stays gathered, up to
  ``stage3_model_persistence_threshold`` in total;
- ``stage3_max_reuse_distance``: a unit whose backward follows soon after its forward stays
  gathered in between (distance: elements used in between, in forward and backward);
- ``stage3_prefetch_bucket_size``: the amount to prefetch, limited by
  ``stage3_max_live_parameters``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dsconfig.facts.model import ModelTree
from dsconfig.runtimes.effective import Zero
from dsconfig.units import Unit, cap_of, order_of_use, units


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedUnit:
    """A sharding unit and its schedule.

    ``gather``: parameters are all-gathered around their use (else they stay unsharded).
    ``reshard_after_forward``: reshard between forward and backward; an int reshards to a smaller
    group. ``prefetch``: indices of the units to prefetch while this one computes.
    """

    modules: tuple[str, ...]
    elements: int
    gather: bool = False
    reshard_after_forward: bool | int = False
    prefetch: tuple[int, ...] = ()


def unit_schedule(zero: Zero, tree: ModelTree) -> tuple[PlannedUnit, ...]:
    """Return units with their schedule; empty at stage 0 or if only counts are known."""
    if zero.stage == 0 or tree.root is None:
        return ()
    sizes = {name: tensor.elements for name, tensor in tree.root.named_parameters()}
    chosen = units(tree, cap_of(zero, tree))
    return schedule(chosen, sizes, zero, order_of_use(tree, chosen))


def schedule(
    units: Sequence[Unit], sizes: Mapping[str, int], zero: Zero, order: Sequence[int] | None = None
) -> tuple[PlannedUnit, ...]:
    """Schedule units. ``sizes`` are elements by full parameter name.

    ``order``: indices of units in order of use in forward; by default the order of ``units``.
    """
    if zero.stage != 3:
        return tuple(PlannedUnit(modules=unit.modules, elements=unit.elements) for unit in units)
    used = order if order is not None else range(len(units))
    groups = zero.hpz_partition_size if zero.hpz_partition_size > 1 else True
    persistent, kept = _persistent(units, sizes, zero), _kept_until_backward(units, used, zero)
    return tuple(
        PlannedUnit(
            modules=unit.modules,
            elements=unit.elements,
            gather=index not in persistent,
            reshard_after_forward=False if index in persistent | kept else groups,
            prefetch=_ahead(units, used, index, zero),
        )
        for index, unit in enumerate(units)
    )


def _persistent(units: Sequence[Unit], sizes: Mapping[str, int], zero: Zero) -> set[int]:
    """Return the units that stay gathered for the entire run at stage 3, smallest first, up to the
    cap.

    A unit qualifies if each of its parameters is within the threshold.
    """
    chosen: set[int] = set()
    budget = zero.model_persistence_threshold
    for index in sorted(range(len(units)), key=lambda index: units[index].elements):
        unit = units[index]
        largest = max((sizes[name] for name in unit.parameters), default=0)
        if largest <= zero.param_persistence_threshold and unit.elements <= budget:
            chosen.add(index)
            budget -= unit.elements
    return chosen


def _kept_until_backward(units: Sequence[Unit], used: Sequence[int], zero: Zero) -> set[int]:
    """Return the units used again within ``max_reuse_distance`` elements."""
    kept: set[int] = set()
    between = 0
    for index in reversed(used):
        between += 2 * units[index].elements
        if between > zero.max_reuse_distance:
            break
        kept.add(index)
    return kept


def _ahead(units: Sequence[Unit], used: Sequence[int], index: int, zero: Zero) -> tuple[int, ...]:
    """Return the units gathered while ``index`` computes: the next ones in the order of use
    ``used``."""
    budget = min(
        zero.prefetch_bucket_size, max(0, zero.max_live_parameters - units[index].elements)
    )
    ahead: list[int] = []
    for following in used[used.index(index) + 1 :]:
        budget -= units[following].elements
        if budget < 0:
            break
        ahead.append(following)
    return tuple(ahead)
