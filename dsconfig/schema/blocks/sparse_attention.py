"""Sparse attention."""

from typing import Literal

from dsconfig.schema.declare import Block, key
from dsconfig.schema.types import Integer


class SparseAttention(Block, until="0.19.6"):
    """Block-sparse attention."""

    mode: Literal["dense", "fixed", "variable", "bigbird", "bslongformer"] = key(
        "fixed", "Setting of the removed sparse attention."
    )
    block: Integer = key(16, "Setting of the removed sparse attention.")
    different_layout_per_head: bool = key(False, "Setting of the removed sparse attention.")
    num_local_blocks: Integer = key(4, "Setting of the removed sparse attention.")
    num_global_blocks: Integer = key(1, "Setting of the removed sparse attention.")
    attention: Literal["bidirectional", "unidirectional"] = key(
        "bidirectional", "Setting of the removed sparse attention."
    )
    horizontal_global_attention: bool = key(False, "Setting of the removed sparse attention.")
    num_different_global_patterns: Integer = key(1, "Setting of the removed sparse attention.")
    num_random_blocks: Integer = key(0, "Setting of the removed sparse attention.")
    local_window_blocks: list[Integer] = key([4], "Setting of the removed sparse attention.")
    global_block_indices: list[Integer] = key([0], "Setting of the removed sparse attention.")
    global_block_end_indices: list[Integer] | None = key(
        None, "Setting of the removed sparse attention."
    )
    num_sliding_window_blocks: Integer = key(3, "Setting of the removed sparse attention.")
