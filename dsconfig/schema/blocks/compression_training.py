"""Compression library: quantization, pruning and layer reduction during training."""

from dsconfig.schema.declare import Block, key
from dsconfig.schema.types import Integer, Number, OrAbsent
from dsconfig.schema.value_checks import A_BLOCK


class LayerReduction(Block, since="0.7.0", until="0.19.6"):
    """Student model with fewer layers, initialized from a teacher."""

    enabled: bool = key(False, "Enables layer reduction.")
    keep_number_layer: OrAbsent[Integer] = key(None, "Number of layers of the student; never read.")
    module_name_prefix: OrAbsent[str] = key(None, "Module path of the layer stack.")
    teacher_layer: OrAbsent[list[Integer]] = key(None, "Indices of the teacher layers to copy.")
    other_module_name: OrAbsent[list[str]] = key(None, "Other modules to copy.")


class Fp16MixedQuantize(Block, since="0.7.0", until="0.19.6"):
    """Gradual transition from fp16 to quantized weights."""

    enabled: bool = key(False, "Enables the gradual transition.")
    quantize_change_ratio: Number = key(0.001, "Fraction of the transition per step.")


class QuantizedWeights(Block, since="0.7.0", until="0.19.6"):
    """Settings shared by all groups of quantized weights."""

    enabled: bool = key(False, "Enables weight quantization.")
    quantizer_kernel: bool = key(False, "Use the fused CUDA kernel.")
    schedule_offset: Integer = key(0, "Steps before it starts.")
    quantize_groups: Integer = key(1, "Number of groups with separate scales.")
    quantize_verbose: bool = key(False, "Print each change of bit width.")
    quantization_type: str = key("symmetric", "Symmetric or asymmetric range.")
    rounding: str = key("nearest", "Nearest or stochastic rounding.")
    quantize_weight_in_forward: bool = key(
        False, "Quantize in forward instead of in the optimizer step."
    )
    fp16_mixed_quantize: OrAbsent[Fp16MixedQuantize] = key(None, "Gradual transition from fp16.")


class WeightBits(Block, since="0.7.0", until="0.19.6"):
    """Bit widths of one group of weights."""

    start_bits: OrAbsent[Integer] = key(None, "Bits at the start.")
    target_bits: OrAbsent[Integer] = key(None, "Bits at the end.")
    quantization_period: OrAbsent[Integer] = key(
        None, "Steps between two reductions of the bit width."
    )


class Modules(Block, since="0.7.0", until="0.19.6"):
    """Modules in a group."""

    modules: list[str] = key("*", "Name patterns of the modules.")
    related_modules: OrAbsent[list[list[str]]] = key(
        None, "Modules whose dimensions change with them."
    )


class WeightGroup(Modules, since="0.7.0", until="0.19.6"):
    """Group of weights with the same quantization."""

    params: OrAbsent[WeightBits] = key(None, "Bit widths.")


class WeightQuantization(Block, since="0.7.0", until="0.19.6"):
    """Weight quantization."""

    shared_parameters: OrAbsent[QuantizedWeights] = key(
        None, "Settings shared by all groups.", checks=(A_BLOCK,)
    )
    different_groups: OrAbsent[dict[str, WeightGroup]] = key(None, "Groups by name.")


class QuantizedActivations(Block, since="0.7.0", until="0.19.6"):
    """Settings shared by all groups of quantized activations."""

    enabled: bool = key(False, "Enables activation quantization.")
    quantization_type: str = key("symmetric", "Symmetric or asymmetric range.")
    range_calibration: str = key(
        "dynamic", "Range per batch (dynamic) or a running range (static)."
    )
    schedule_offset: Integer = key(1000, "Steps before it starts.")


class ActivationBits(Block, since="0.7.0", until="0.19.6"):
    """Bit width of one group of activations."""

    bits: OrAbsent[Integer] = key(None, "Bits per value.")


class ActivationGroup(Modules, since="0.7.0", until="0.19.6"):
    """Group of activations with the same quantization."""

    params: OrAbsent[ActivationBits] = key(None, "Bit width.")


class ActivationQuantization(Block, since="0.7.0", until="0.19.6"):
    """Activation quantization."""

    shared_parameters: OrAbsent[QuantizedActivations] = key(
        None, "Settings shared by all groups.", checks=(A_BLOCK,)
    )
    different_groups: OrAbsent[dict[str, ActivationGroup]] = key(None, "Groups by name.")


class Density(Block, since="0.7.0", until="0.19.6"):
    """Density of a pruned group."""

    dense_ratio: OrAbsent[Number] = key(None, "Fraction of values to keep.")


class PruningGroup(Modules, since="0.7.0", until="0.19.6"):
    """Group of modules with the same pruning."""

    params: OrAbsent[Density] = key(None, "Density.")


class Pruning(Block, since="0.7.0", until="0.19.6"):
    """Settings shared by all pruned groups."""

    enabled: bool = key(False, "Enables this kind of pruning.")
    method: str = key("l1", "Criterion for dropping values.")
    schedule_offset: Integer = key(1000, "Steps before it starts.")


class SparsePruningParameters(Pruning, since="0.7.0", until="0.19.6"):
    """Settings of unstructured pruning."""

    schedule_offset_end: Integer = key(1000, "Step at which pruning is complete.", since="0.9.3")
    schedule_offset_stride: Integer = key(1, "Steps between two pruning rounds.", since="0.9.3")
    block_pattern: str = key("4x1", "Shape of the pruned blocks.", since="0.9.3")
    dense_ratio: Number = key(0.1, "Fraction of values to keep.", since="0.9.3")
    excluded_modules: list[str] = key([], "Modules that are not pruned.", since="0.9.3")


class HeadPruningParameters(Block, since="0.7.0", until="0.19.6"):
    """Settings of attention-head pruning."""

    enabled: bool = key(False, "Enables this kind of pruning.")
    method: str = key("topk", "Criterion for dropping heads.")
    schedule_offset: Integer = key(1000, "Steps before it starts.")
    num_heads: OrAbsent[Integer] = key(None, "Number of heads per layer.")


class SparsePruning(Block, since="0.7.0", until="0.19.6"):
    """Unstructured weight pruning."""

    shared_parameters: OrAbsent[SparsePruningParameters] = key(
        None, "Settings shared by all groups.", checks=(A_BLOCK,)
    )
    different_groups: OrAbsent[dict[str, PruningGroup]] = key(None, "Groups by name.")


class HeadPruning(Block, since="0.7.0", until="0.19.6"):
    """Attention-head pruning."""

    shared_parameters: OrAbsent[HeadPruningParameters] = key(
        None, "Settings shared by all groups.", checks=(A_BLOCK,)
    )
    different_groups: OrAbsent[dict[str, PruningGroup]] = key(None, "Groups by name.")


class StructuredPruning(Block, since="0.7.0", until="0.19.6"):
    """Row or channel pruning."""

    shared_parameters: OrAbsent[Pruning] = key(
        None, "Settings shared by all groups.", checks=(A_BLOCK,)
    )
    different_groups: OrAbsent[dict[str, PruningGroup]] = key(None, "Groups by name.")


class CompressionTraining(Block, since="0.7.0", until="0.19.6"):
    """Compression during training."""

    layer_reduction: OrAbsent[LayerReduction] = key(
        None, "Layer reduction: a student with fewer layers."
    )
    weight_quantization: OrAbsent[WeightQuantization] = key(
        None, "Weight quantization.", checks=(A_BLOCK,)
    )
    activation_quantization: OrAbsent[ActivationQuantization] = key(
        None, "Activation quantization.", checks=(A_BLOCK,)
    )
    sparse_pruning: OrAbsent[SparsePruning] = key(
        None, "Unstructured weight pruning.", checks=(A_BLOCK,)
    )
    row_pruning: OrAbsent[StructuredPruning] = key(None, "Row pruning.", checks=(A_BLOCK,))
    head_pruning: OrAbsent[HeadPruning] = key(None, "Attention-head pruning.", checks=(A_BLOCK,))
    channel_pruning: OrAbsent[StructuredPruning] = key(None, "Channel pruning.", checks=(A_BLOCK,))
    shared_parameters: OrAbsent[QuantizedWeights] = key(
        None, "Misplaced block that one code path read."
    )
