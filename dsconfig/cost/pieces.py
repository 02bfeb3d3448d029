"""What lies below the device, piece by piece, before it is added up per node."""

from typing import NamedTuple

from dsconfig.cost.estimate import Component, Phase

OPTIMIZER = "/zero_optimization/offload_optimizer"
PARAMETERS = "/zero_optimization/offload_param"


class Piece(NamedTuple):
    """Bytes of one rank in main memory or on disk; ``pinned``: page-locked."""

    component: Component
    pinned: bool = False


def piece(
    name: str,
    amount: int,
    pointer: str,
    formula: str,
    *,
    pinned: bool = False,
    phases: tuple[Phase, ...] = tuple(Phase),
) -> Piece:
    component = Component(name=name, bytes=amount, pointer=pointer, phases=phases, formula=formula)
    return Piece(component, pinned)
