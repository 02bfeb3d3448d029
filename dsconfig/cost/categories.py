"""Config keys that cause components, as pointers, and the categories that every runtime has."""

from dsconfig.cost.estimate import Component
from dsconfig.cost.timeline import Category
from dsconfig.schema import paths

ZERO, STAGE = paths.ZERO.pointer, paths.STAGE.pointer
OPTIMIZER, PARAMETERS = paths.OFFLOAD_OPTIMIZER.pointer, paths.OFFLOAD_PARAM.pointer
"""The blocks that offload optimizer states and weights."""
ACCUMULATION = paths.ACCUMULATION.pointer

MASTERS, PER_OWNED = "master weights", "4 bytes per owned element"
CONSTANTS = Category(
    "quantization scales", "", "scales of quantized base weights, on every rank at every stage"
)
MOMENTS = Category("optimizer state", paths.OPTIMIZER_TYPE.pointer, "state bytes per owned element")
TEMPORARIES = Category(
    "optimizer temporaries", paths.OPTIMIZER_TYPE.pointer, "unfused kernels only"
)


def offloaded_masters(amount: int, *, pinned: bool = False) -> Component:
    """Return the fp32 master weights of an offloaded optimizer."""
    return Component(MASTERS, amount, OPTIMIZER, PER_OWNED, pinned=pinned)


def offloaded_gradients(
    amount: int, *, pinned: bool = False, piece: int | None = None
) -> Component:
    """Return the gradients of an offloaded optimizer, in the width of its masters."""
    return Component("gradients", amount, OPTIMIZER, PER_OWNED, pinned=pinned, piece=piece)


def offloaded_moments(amount: int, pointer: str = OPTIMIZER) -> Component:
    """Return the states of an offloaded optimizer."""
    return Component(MOMENTS.name, amount, pointer, "state bytes per owned element")
