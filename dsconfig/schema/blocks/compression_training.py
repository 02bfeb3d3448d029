"""The compression library: quantisation, pruning and layer reduction while training."""

from dsconfig.schema.declare import Block, key
from dsconfig.schema.types import Integer, Number, OrAbsent
from dsconfig.schema.value_checks import A_BLOCK


class LayerReduction(Block, since="0.7.0", until="0.19.6"):
    """A student with fewer layers, started from its teacher."""

    enabled: bool = key(False, "Turned layer reduction on.")
    keep_number_layer: OrAbsent[Integer] = key(None, "Layers of the student; read by nothing.")
    module_name_prefix: OrAbsent[str] = key(None, "Module path of the stack of layers.")
    teacher_layer: OrAbsent[list[Integer]] = key(None, "Layers of the teacher that are copied.")
    other_module_name: OrAbsent[list[str]] = key(None, "Further modules that are copied.")


class Fp16MixedQuantize(Block, since="0.7.0", until="0.19.6"):
    """A slow fade from fp16 to quantised weights."""

    enabled: bool = key(False, "Turned the fade on.")
    quantize_change_ratio: Number = key(0.001, "Share by which the fade advanced per step.")


class QuantizedWeights(Block, since="0.7.0", until="0.19.6"):
    """Settings that all groups of quantised weights share."""

    enabled: bool = key(False, "Turned weight quantisation on.")
    quantizer_kernel: bool = key(False, "Used the fused CUDA kernel.")
    schedule_offset: Integer = key(0, "Steps before it began.")
    quantize_groups: Integer = key(1, "Groups with a scale of their own.")
    quantize_verbose: bool = key(False, "Printed each change of width.")
    quantization_type: str = key("symmetric", "Symmetric or asymmetric range.")
    rounding: str = key("nearest", "Nearest or stochastic rounding.")
    quantize_weight_in_forward: bool = key(False, "Quantised in forward, not at the step.")
    fp16_mixed_quantize: OrAbsent[Fp16MixedQuantize] = key(None, "A slow fade from fp16.")


class WeightBits(Block, since="0.7.0", until="0.19.6"):
    """Widths of one group of weights."""

    start_bits: OrAbsent[Integer] = key(None, "Bits at the start.")
    target_bits: OrAbsent[Integer] = key(None, "Bits at the end.")
    quantization_period: OrAbsent[Integer] = key(None, "Steps until the next drop.")


class Modules(Block, since="0.7.0", until="0.19.6"):
    """Which modules a group covers."""

    modules: list[str] = key("*", "Name patterns of the modules.")
    related_modules: OrAbsent[list[list[str]]] = key(None, "Modules that shrink with them.")


class WeightGroup(Modules, since="0.7.0", until="0.19.6"):
    """Weights quantised alike."""

    params: OrAbsent[WeightBits] = key(None, "Widths.")


class WeightQuantization(Block, since="0.7.0", until="0.19.6"):
    """Quantised weights."""

    shared_parameters: OrAbsent[QuantizedWeights] = key(
        None, "Settings of all groups.", checks=(A_BLOCK,)
    )
    different_groups: OrAbsent[dict[str, WeightGroup]] = key(None, "Groups by name.")


class QuantizedActivations(Block, since="0.7.0", until="0.19.6"):
    """Settings that all groups of quantised activations share."""

    enabled: bool = key(False, "Turned activation quantisation on.")
    quantization_type: str = key("symmetric", "Symmetric or asymmetric range.")
    range_calibration: str = key("dynamic", "Range per batch, or a running one.")
    schedule_offset: Integer = key(1000, "Steps before it began.")


class ActivationBits(Block, since="0.7.0", until="0.19.6"):
    """Width of one group of activations."""

    bits: OrAbsent[Integer] = key(None, "Bits per value.")


class ActivationGroup(Modules, since="0.7.0", until="0.19.6"):
    """Activations quantised alike."""

    params: OrAbsent[ActivationBits] = key(None, "Width.")


class ActivationQuantization(Block, since="0.7.0", until="0.19.6"):
    """Quantised activations."""

    shared_parameters: OrAbsent[QuantizedActivations] = key(
        None, "Settings of all groups.", checks=(A_BLOCK,)
    )
    different_groups: OrAbsent[dict[str, ActivationGroup]] = key(None, "Groups by name.")


class Density(Block, since="0.7.0", until="0.19.6"):
    """How much of a group is kept."""

    dense_ratio: OrAbsent[Number] = key(None, "Share of values that stay.")


class PruningGroup(Modules, since="0.7.0", until="0.19.6"):
    """Modules pruned alike."""

    params: OrAbsent[Density] = key(None, "Density.")


class Pruning(Block, since="0.7.0", until="0.19.6"):
    """Settings that all pruned groups share."""

    enabled: bool = key(False, "Turned this pruning on.")
    method: str = key("l1", "Score by which values are dropped.")
    schedule_offset: Integer = key(1000, "Steps before it began.")


class SparsePruningParameters(Pruning, since="0.7.0", until="0.19.6"):
    """Settings of unstructured pruning."""

    schedule_offset_end: Integer = key(1000, "Step at which it was complete.", since="0.9.3")
    schedule_offset_stride: Integer = key(1, "Steps between two rounds.", since="0.9.3")
    block_pattern: str = key("4x1", "Shape of the dropped blocks.", since="0.9.3")
    dense_ratio: Number = key(0.1, "Share of values that stay.", since="0.9.3")
    excluded_modules: list[str] = key([], "Modules left whole.", since="0.9.3")


class HeadPruningParameters(Block, since="0.7.0", until="0.19.6"):
    """Settings of attention-head pruning."""

    enabled: bool = key(False, "Turned this pruning on.")
    method: str = key("topk", "Score by which heads are dropped.")
    schedule_offset: Integer = key(1000, "Steps before it began.")
    num_heads: OrAbsent[Integer] = key(None, "Heads per layer.")


class SparsePruning(Block, since="0.7.0", until="0.19.6"):
    """Single weights dropped."""

    shared_parameters: OrAbsent[SparsePruningParameters] = key(
        None, "Settings of all groups.", checks=(A_BLOCK,)
    )
    different_groups: OrAbsent[dict[str, PruningGroup]] = key(None, "Groups by name.")


class HeadPruning(Block, since="0.7.0", until="0.19.6"):
    """Attention heads dropped."""

    shared_parameters: OrAbsent[HeadPruningParameters] = key(
        None, "Settings of all groups.", checks=(A_BLOCK,)
    )
    different_groups: OrAbsent[dict[str, PruningGroup]] = key(None, "Groups by name.")


class StructuredPruning(Block, since="0.7.0", until="0.19.6"):
    """Whole rows or channels dropped."""

    shared_parameters: OrAbsent[Pruning] = key(None, "Settings of all groups.", checks=(A_BLOCK,))
    different_groups: OrAbsent[dict[str, PruningGroup]] = key(None, "Groups by name.")


class CompressionTraining(Block, since="0.7.0", until="0.19.6"):
    """Compression while training."""

    layer_reduction: OrAbsent[LayerReduction] = key(None, "A student with fewer layers.")
    weight_quantization: OrAbsent[WeightQuantization] = key(
        None, "Quantised weights.", checks=(A_BLOCK,)
    )
    activation_quantization: OrAbsent[ActivationQuantization] = key(
        None, "Quantised activations.", checks=(A_BLOCK,)
    )
    sparse_pruning: OrAbsent[SparsePruning] = key(
        None, "Single weights dropped.", checks=(A_BLOCK,)
    )
    row_pruning: OrAbsent[StructuredPruning] = key(None, "Rows dropped.", checks=(A_BLOCK,))
    head_pruning: OrAbsent[HeadPruning] = key(None, "Attention heads dropped.", checks=(A_BLOCK,))
    channel_pruning: OrAbsent[StructuredPruning] = key(None, "Channels dropped.", checks=(A_BLOCK,))
    shared_parameters: OrAbsent[QuantizedWeights] = key(
        None, "A wrong nesting level that one code path looked at."
    )
