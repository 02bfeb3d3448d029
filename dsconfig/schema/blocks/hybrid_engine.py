"""The hybrid engine: training and generation in turn, for RLHF."""

from dsconfig.schema.declare import Block, key
from dsconfig.schema.markers import Bounds
from dsconfig.schema.types import Integer, Positive


class HybridEngine(Block, since="0.9.0", closed="0.9.0"):
    """Switches one model between training and generation."""

    enabled: bool = key(False, "Turns the hybrid engine on.")
    max_out_tokens: Positive = key(
        512,
        "Longest sequence, prompt included.",
        unit="tokens",
        bounds_was={"0.19.7": Bounds()},
    )
    inference_tp_size: Integer = key(1, "Ranks that share a layer while generating.")
    release_inference_cache: bool = key(
        False, "Frees the key-value cache after generation.", memory="the cache, between phases"
    )
    pin_parameters: bool = key(True, "Keeps the kernels' parameters in place.")
    tp_gather_partition_size: Integer = key(8, "Ranks gathered at a time for the shards.")
    enable_cuda_graph: bool = key(False, "Generates with CUDA graphs.", since="0.19.6")
