"""Memory traffic of operations that run as several kernels where published runs have one.

The rates of a device are those of runs with fused attention and a fused activation function, which
move their inputs and outputs once. Counted in the modeling code of transformers 5.23; each
operation reads its operands and writes its result, and backward does so twice as often.
"""

from dsconfig.cost.activations import Style, inner_width
from dsconfig.cost.families import Family, family_of
from dsconfig.facts.model import Architecture

SCORE_ACCESSES = 8
"""Accesses per score of eager attention (``eager_attention_forward``): both products (1 each), the
scale, the mask and softmax (read and written)."""
CAST_ACCESSES = 4
"""More of them if softmax is in fp32: it writes fp32, which the cast reads (2 units each)."""
CAP_ACCESSES = 6
"""Soft cap: a quotient, tanh and a product."""
TANH_GELU_ACCESSES = 16
"""Accesses per element of an eager tanh GELU (``NewGELUActivation``) beyond those of one kernel:
eight operations, two of them with two operands."""
_EAGER_TANH_GELU = 5
"""``Family.mlp_copies`` of a plain MLP with it."""


def bytes_of_token(shape: Architecture, style: Style, length: int) -> float:
    """Return the bytes that all blocks move for one token in forward, besides the traffic that is
    part of the rates."""
    family = family_of(shape)
    moved = 0.0
    if not style.flash:
        accesses = _score_accesses(family, style)
        moved += accesses * length * shape.heads * shape.attentions
    if family.mlp_copies == _EAGER_TANH_GELU and not shape.gated_mlp and not style.lean:
        widths = sum(count * inner_width(shape, block) for block, count in shape.kinds.items())
        moved += TANH_GELU_ACCESSES * widths
    return style.width * moved


def _score_accesses(family: Family, style: Style) -> float:
    accesses = float(SCORE_ACCESSES)
    if family.scores_in_fp32 and style.width == 2:
        accesses += CAST_ACCESSES
    if family.softcap:
        accesses += CAP_ACCESSES
    if family.attention_dropout and style.dropout is not False:
        accesses += 2 + style.mask_width / style.width
    return accesses
