"""Masks over a sequence that is divided over ranks: all of it, on each rank (dsengine only)."""

from dsconfig.cost.activations import is_flash
from dsconfig.facts.facts import Facts
from dsconfig.tiles import LONGEST_DENSE_MASK


def dense_mask_bytes(facts: Facts) -> int:
    """Return the bytes of a dense mask of the sequence, for layers with a window.

    Layers without one need none. Kernels of flash attention know windows themselves, and longer
    sequences use masks in blocks. Packed samples and padding are properties of the data.
    """
    length, model = facts.sequence_length, facts.model
    if facts.degrees.sequence == 1 or length is None or model is None:
        return 0
    kernel = str(facts.execution.get("attn_implementation") or "sdpa")
    window = model.sliding_window
    has_mask = is_flash(facts) and kernel == "sdpa" and window is not None and window < length
    return length**2 if has_mask and length <= LONGEST_DENSE_MASK else 0
