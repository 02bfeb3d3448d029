"""When each unit is gathered, freed and fetched ahead.

At stage 3 a unit is gathered around its use. Three keys make exceptions, all counted in
elements as DeepSpeed counts them:

- ``stage3_param_persistence_threshold``: a unit made only of smaller parameters stays gathered,
  as long as ``stage3_model_persistence_threshold`` allows;
- ``stage3_max_reuse_distance``: a unit whose backward comes soon after its forward stays
  gathered in between (distance: elements used in between, forward and backward);
- ``stage3_prefetch_bucket_size``: how much is gathered ahead, never more than
  ``stage3_max_live_parameters`` altogether.
"""

from collections.abc import Mapping, Sequence

from dsconfig.planner.model import UnitSchedule
from dsconfig.runtimes.effective import Zero
from dsconfig.units import Unit, gathered_ahead, kept_until_backward, persistent_units


def schedule(
    units: Sequence[Unit], sizes: Mapping[str, int], zero: Zero, order: Sequence[int] | None = None
) -> tuple[UnitSchedule, ...]:
    """Give each unit its place. ``sizes`` are elements by full parameter name.

    ``order`` lists indices of units in the order of their use in forward; by default the order
    of registration of their first module is taken as the order of use.
    """
    if zero.stage != 3:
        return tuple(
            UnitSchedule(
                modules=unit.modules,
                elements=unit.elements,
                gather=False,
                reshard_after_forward=False,
            )
            for unit in units
        )
    used = list(order) if order is not None else list(range(len(units)))
    persistent = persistent_units(units, sizes, zero)
    kept = kept_until_backward(units, used, zero)
    return tuple(
        UnitSchedule(
            modules=unit.modules,
            elements=unit.elements,
            gather=index not in persistent,
            reshard_after_forward=_reshard(index in persistent or index in kept, zero),
            prefetch=gathered_ahead(units, used, index, zero),
        )
        for index, unit in enumerate(units)
    )


def _reshard(stays: bool, zero: Zero) -> bool | int:
    if stays:
        return False
    return zero.hpz_partition_size if zero.hpz_partition_size > 1 else True
