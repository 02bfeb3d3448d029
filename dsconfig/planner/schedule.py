"""Schedule of gathering, resharding and prefetching.

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

from dsconfig.facts.model import ModelTree
from dsconfig.planner.plan import PlannedUnit
from dsconfig.runtimes.effective import Zero
from dsconfig.units import Unit, cap_of, order_of_use, unit_schedules, units


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
    groups = zero.hpz_partition_size if zero.hpz_partition_size > 1 else True
    places = unit_schedules(units, sizes, zero, order if order is not None else range(len(units)))
    return tuple(
        PlannedUnit(
            modules=unit.modules,
            elements=unit.elements,
            gather=not place.persistent,
            reshard_after_forward=groups if place.freed_after_forward else False,
            prefetch=place.ahead,
        )
        for unit, place in zip(units, places, strict=True)
    )
