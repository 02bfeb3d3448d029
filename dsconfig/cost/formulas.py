"""Written-out formulas of activations."""

from dsconfig.cost.mixers import KERNELS
from dsconfig.facts.model import Architecture

TOKENS = "sequence length x batch"
HIDDEN, LOGITS = f"{TOKENS} x hidden size", f"{TOKENS} x vocabulary"
RECOMPUTED = f"{HIDDEN} x 2 bytes per block, one block recomputed"
CHECKPOINTS = f"{HIDDEN} x 2 bytes x layers"


def of_blocks(shape: Architecture, linear: float, quadratic: float) -> str:
    """Return what the most common block keeps, from its bytes as in ``BlockBytes``."""
    formula = f"{HIDDEN} x {linear:.1f} bytes per block"
    if quadratic:
        scores = f"heads x sequence length x {quadratic:.0f}"
        formula = f"{TOKENS} x (hidden size x {linear:.1f} + {scores}) bytes per block"
    if len(shape.kinds) > 1:
        formula += " of the most common kind"
    kernels = dict.fromkeys(
        KERNELS[mixer.kind]
        for kind in shape.kinds
        for mixer in kind.mixers
        if mixer.kind in KERNELS
    )
    return f"{formula}, with the kernels of {', '.join(kernels)}" if kernels else formula
