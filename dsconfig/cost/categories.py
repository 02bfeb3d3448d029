"""Config keys that cause components, as pointers, and the categories that every runtime has."""

from dsconfig.batch import STEPS
from dsconfig.cost.estimate import Component
from dsconfig.cost.timeline import Category
from dsconfig.schema import paths
from dsconfig.source.pointer import from_dotted

ZERO, STAGE = from_dotted(paths.ZERO), from_dotted(paths.STAGE)
OPTIMIZER, PARAMETERS = from_dotted(paths.OFFLOAD_OPTIMIZER), from_dotted(paths.OFFLOAD_PARAM)
"""The blocks that offload optimizer states and weights."""
ACCUMULATION = from_dotted(STEPS)

MASTERS, PER_OWNED = "master weights", "4 bytes per owned element"
CONSTANTS = Category(
    "quantization scales", "", "scales of quantized base weights, on every rank at every stage"
)
MOMENTS = Category("optimizer state", "/optimizer/type", "state bytes per owned element")
TEMPORARIES = Category("optimizer temporaries", "/optimizer/type", "unfused kernels only")


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
