"""Block-sparse attention."""

from typing import Literal

from dsconfig.schema.by_hand import SPARSITY_MODE
from dsconfig.schema.declare import Block, key
from dsconfig.schema.types import Integer


class SparseAttention(Block, until="0.19.6"):
    """Attention over a fixed pattern of blocks."""

    mode: Literal["dense", "fixed", "variable", "bigbird", "bslongformer"] = key(
        "fixed", "Pattern of the blocks.", by_hand=(SPARSITY_MODE,)
    )
    block: Integer = key(16, "Edge of a block, in tokens.")
    different_layout_per_head: bool = key(False, "Gives each head a pattern of its own.")
    num_local_blocks: Integer = key(4, "Blocks in a local window; mode fixed.")
    num_global_blocks: Integer = key(1, "Blocks that all others attend to.")
    attention: Literal["bidirectional", "unidirectional"] = key(
        "bidirectional", "Whether tokens see what follows."
    )
    horizontal_global_attention: bool = key(False, "Lets global blocks attend to all others.")
    num_different_global_patterns: Integer = key(1, "Global patterns shared out over heads.")
    num_random_blocks: Integer = key(0, "Random blocks per row.")
    local_window_blocks: list[Integer] = key([4], "Widths of the local windows; mode variable.")
    global_block_indices: list[Integer] = key([0], "First blocks of the global spans.")
    global_block_end_indices: list[Integer] | None = key(None, "Ends of the global spans.")
    num_sliding_window_blocks: Integer = key(3, "Width of the sliding window.")
