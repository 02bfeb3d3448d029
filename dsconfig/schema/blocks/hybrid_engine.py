"""The hybrid engine of RLHF."""

from dsconfig.schema.declare import Block, key
from dsconfig.schema.types import Integer, Positive


class HybridEngine(Block, since="0.9.0", closed="0.9.0"):
    """RLHF engine that switches between training and generation."""

    enabled: bool = key(False, "Turns it on.")
    max_out_tokens: Positive = key(
        512, "Most tokens per sequence including the prompt.", unit="tokens"
    )
    inference_tp_size: Integer = key(
        1, "Tensor-parallel degree while generating; no bound is checked."
    )
    release_inference_cache: bool = key(False, "Frees the KV cache after generation.")
    pin_parameters: bool = key(True, "Keeps kernel parameters pinned.")
    tp_gather_partition_size: Integer = key(
        8, "Ranks gathered per step when building tensor-parallel shards."
    )
    enable_cuda_graph: bool = key(False, "Captures CUDA graphs for generation.", since="0.19.6")
