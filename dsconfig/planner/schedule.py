"""Schedule of gathering, resharding and prefetching, and the communication volume.

At stage 3 a unit is gathered around its use. Three keys, all counted in elements as in DeepSpeed,
change this:

- ``stage3_param_persistence_threshold``: a unit with only smaller parameters stays gathered, up to
  ``stage3_model_persistence_threshold`` in total;
- ``stage3_max_reuse_distance``: a unit whose backward follows soon after its forward stays
  gathered in between (distance: elements used in between, in forward and backward);
- ``stage3_prefetch_bucket_size``: the amount to prefetch, limited by
  ``stage3_max_live_parameters``.

Ring algorithms: an all-gather or a reduce-scatter of S bytes over N ranks sends S (N-1)/N, an
all-reduce twice that (Rajbhandari et al. 2020, arXiv:1910.02054, section 7).
"""

from collections.abc import Mapping, Sequence

from dsconfig.facts.model import ModelTree
from dsconfig.mesh import Mesh
from dsconfig.planner.plan import PlannedUnit
from dsconfig.runtimes.effective import Effective, Zero
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


def traffic(
    scheduled: Sequence[PlannedUnit], tree: ModelTree, mesh: Mesh, effective: Effective
) -> Mapping[str, int]:
    """Return bytes sent per rank and optimizer step, by collective."""
    zero, numerics = effective.zero, effective.numerics
    accumulation = effective.batch.accumulation if effective.batch else 1
    gradient_bytes = tree.trainable * numerics.communication_dtype.bytes
    if zero.stage == 0:
        return {"all_reduce": 2 * _ring(gradient_bytes, mesh.gradient_ranks)}
    reductions = accumulation if zero.reduces_every_pass else 1
    if zero.stage < 3:
        gathered = tree.trainable  # updated parameters
    elif scheduled:
        gathered = sum(_gathers(unit, accumulation) * unit.elements for unit in scheduled)
    else:  # only counts are known
        gathered = 2 * accumulation * tree.parameters
    sent = {
        "all_gather": _ring(gathered * numerics.precision.bytes, mesh.state_ranks),
        "reduce_scatter": _ring(reductions * gradient_bytes, mesh.state_ranks),
    }
    if mesh.replicate > 1:
        share = reductions * gradient_bytes // mesh.state_ranks
        sent["all_reduce"] = 2 * _ring(share, mesh.replicate)
    return sent


def _gathers(unit: PlannedUnit, accumulation: int) -> int:
    """Return how often a unit is gathered per step, in forward and backward."""
    if not unit.gather:
        return 1
    return accumulation * (1 if unit.reshard_after_forward is False else 2)


def _ring(volume: int, ranks: int) -> int:
    return volume * (ranks - 1) // ranks
