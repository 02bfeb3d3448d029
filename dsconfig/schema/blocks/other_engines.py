"""Pipelines, hybrid engine, ZeRO-Inference, and keys read by other programs."""

from typing import Literal

from dsconfig.schema.declare import REQUIRED, Block, key
from dsconfig.schema.markers import Bounds
from dsconfig.schema.types import Bits, Integer, OnlyFalse, OrAbsent, OrNativeAuto, Positive


class Pipeline(Block):
    """Options of the pipeline engine; PipelineModule sets the rest."""

    stages: OrNativeAuto[Integer] = key("auto", "Stored by DeepSpeed but never read.")
    partition: str = key("best", "Stored by DeepSpeed but never read.")
    seed_layers: bool = key(False, "Stored by DeepSpeed but never read.")
    activation_checkpoint_interval: Integer = key(
        0, "Layers between activation checkpoints; 0: disabled."
    )
    pipe_partitioned: bool = key(True, "Partition activations sent between stages.", since="0.12.3")
    grad_partitioned: bool = key(True, "Partition gradients sent between stages.", since="0.12.3")
    use_reentrant: bool = key(True, "Use reentrant activation checkpointing.", since="0.10.3")


class HybridEngine(Block, since="0.9.0", closed="0.9.0"):
    """Hybrid engine: switches a model between training and generation."""

    enabled: bool = key(False, "Enables the hybrid engine.")
    max_out_tokens: Positive = key(
        512,
        "Maximum sequence length, including the prompt.",
        unit="tokens",
        bounds_was={"0.19.7": Bounds()},
    )
    inference_tp_size: Integer = key(1, "Tensor-parallel degree during generation.")
    release_inference_cache: bool = key(
        False,
        "Free the KV cache after generation.",
        memory="the KV cache, between generation phases",
    )
    pin_parameters: bool = key(True, "Keep the inference kernels' parameters in place.")
    tp_gather_partition_size: Integer = key(8, "Number of ranks gathered at a time.")
    enable_cuda_graph: bool = key(False, "Use CUDA graphs for generation.", since="0.19.6")


class Quantizer(Block, since="0.10.3"):
    """Quantizer settings; checked when the first tensor is quantized."""

    num_bits: Bits = key(REQUIRED, "Bits per weight.")
    group_size: Integer = key(
        REQUIRED, "Elements per scale; must divide the size of the dimension."
    )
    group_dim: Integer = key(REQUIRED, "Dimension that is split into groups.")
    symmetric: OnlyFalse = key(
        REQUIRED, "Must be false: only asymmetric quantization is implemented."
    )


class WeightQuantization(Block, since="0.10.3", closed="0.10.3"):
    """Weight quantization for ZeRO-Inference."""

    enabled: bool = key(True, "Enables quantization.")
    num_bits: Integer = key(8, "Bits per weight.")
    q_type: Literal["asymmetric", "symmetric"] = key("symmetric", "Symmetric or asymmetric range.")
    q_groups: Integer = key(1, "Number of groups with separate scales.")
    quantized_initialization: OrAbsent[Quantizer] = key(None, "Quantization during zero.Init.")
    post_init_quant: OrAbsent[dict[str, Quantizer]] = key(
        None, "Quantization after initialization, by a substring of the module name."
    )


class MsAmp(Block, status="external"):
    """MS-AMP fp8, written and read by accelerate."""

    enabled: OrAbsent[bool] = key(None, "Enables MS-AMP.")
    opt_level: OrAbsent[Literal["O1", "O2"]] = key(None, "MS-AMP optimization level.")


class InferenceTensorParallel(Block, status="external"):
    """Tensor parallelism for generation in transformers."""

    tp_size: Integer = key(1, "Tensor-parallel degree.")


class Inference(Block, status="external"):
    """Generation settings that transformers reads."""

    tensor_parallel: OrAbsent[InferenceTensorParallel] = key(None, "Tensor parallelism settings.")
