"""Bytes that each rank sends per optimizer step, by collective.

Ring algorithms: an all-gather or a reduce-scatter of S bytes over N ranks sends S (N-1)/N, an
all-reduce twice that (Rajbhandari et al. 2020, arXiv:1910.02054, section 7).
"""

from collections.abc import Mapping, Sequence

from dsconfig.mesh import Mesh
from dsconfig.planner.model import UnitSchedule
from dsconfig.runtimes.effective import Effective


def traffic(
    units: Sequence[UnitSchedule],
    trainable: int,
    mesh: Mesh,
    effective: Effective,
) -> Mapping[str, int]:
    """Bytes per rank and step for each collective that is used."""
    zero, numerics = effective.zero, effective.numerics
    accumulation = effective.batch.accumulation if effective.batch else 1
    gradient_bytes = trainable * numerics.communication_dtype.bytes
    weight_bytes = numerics.precision.bytes
    if zero.stage == 0:
        return {"all_reduce": 2 * _ring(gradient_bytes, mesh.gradient_ranks)}
    reductions = 1 if zero.stage == 1 else accumulation
    elements = sum(unit.elements for unit in units)
    gathered = elements * weight_bytes
    if zero.stage == 3:
        gathered = sum(_gathers(unit, accumulation) * unit.elements for unit in units)
        gathered *= weight_bytes
    sent = {
        "all_gather": _ring(gathered, mesh.state_ranks),
        "reduce_scatter": _ring(reductions * gradient_bytes, mesh.state_ranks),
    }
    if mesh.replicate > 1:
        share = reductions * gradient_bytes // mesh.state_ranks
        sent["all_reduce"] = 2 * _ring(share, mesh.replicate)
    return sent


def _gathers(unit: UnitSchedule, accumulation: int) -> int:
    """How often a unit is gathered per step: around forward, and again for backward."""
    if not unit.gather:
        return 1
    return accumulation * (1 if unit.reshard_after_forward is False else 2)


def _ring(volume: int, ranks: int) -> int:
    return volume * (ranks - 1) // ranks
