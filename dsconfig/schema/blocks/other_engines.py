"""Engines beside plain training: pipelines, RLHF, ZeRO-Inference, and what other programs read."""

from typing import Literal

from dsconfig.schema.declare import REQUIRED, Block, key
from dsconfig.schema.markers import Bounds
from dsconfig.schema.types import Bits, Integer, OnlyFalse, OrAbsent, OrNativeAuto, Positive


class Pipeline(Block):
    """Options of the pipeline engine; the model's PipelineModule decides the rest."""

    stages: OrNativeAuto[Integer] = key("auto", "Stored and not read.")
    partition: str = key("best", "Stored and not read.")
    seed_layers: bool = key(False, "Stored and not read.")
    activation_checkpoint_interval: Integer = key(
        0, "Layers between activation checkpoints; 0 is off."
    )
    pipe_partitioned: bool = key(
        True, "Shards activations that travel between stages.", since="0.12.3"
    )
    grad_partitioned: bool = key(
        True, "Shards gradients that travel between stages.", since="0.12.3"
    )
    use_reentrant: bool = key(True, "False takes torch's non-reentrant checkpoint.", since="0.10.3")


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


class Quantizer(Block, since="0.10.3"):
    """How tensors are quantised; checked when the first one is."""

    num_bits: Bits = key(REQUIRED, "Bits per weight.")
    group_size: Integer = key(REQUIRED, "Elements with one scale; must divide the axis.")
    group_dim: Integer = key(REQUIRED, "Axis that is cut into groups.")
    symmetric: OnlyFalse = key(REQUIRED, "Only the asymmetric range exists.")


class WeightQuantization(Block, since="0.10.3", closed="0.10.3"):
    """Quantised weights for ZeRO-Inference."""

    enabled: bool = key(True, "Turns quantisation on.")
    num_bits: Integer = key(8, "Bits per weight.")
    q_type: Literal["asymmetric", "symmetric"] = key("symmetric", "ReadAs of range.")
    q_groups: Integer = key(1, "Groups with a scale of their own.")
    quantized_initialization: OrAbsent[Quantizer] = key(
        None, "Applied while zero.Init builds the model."
    )
    post_init_quant: OrAbsent[dict[str, Quantizer]] = key(
        None, "Applied to a built model, by a part of the module's name."
    )


class MsAmp(Block, status="external"):
    """MS-AMP fp8, written and read by accelerate."""

    enabled: OrAbsent[bool] = key(None, "Turns MS-AMP on.")
    opt_level: OrAbsent[Literal["O1", "O2"]] = key(None, "How much is kept in fp8.")


class InferenceTensorParallel(Block, status="external"):
    """Tensor parallelism while transformers generates."""

    tp_size: Integer = key(1, "Ranks that share a layer.")


class Inference(Block, status="external"):
    """What transformers looks at for generation."""

    tensor_parallel: OrAbsent[InferenceTensorParallel] = key(None, "Tensor parallelism.")
