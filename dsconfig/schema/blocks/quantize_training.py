"""Mixture of quantisation: training towards few-bit weights. Dead since 0.7.0."""

from dsconfig.schema.declare import Block, key
from dsconfig.schema.types import Integer, Number, OrAbsent


class Eigenvalue(Block, since="0.4.0", until="0.19.6"):
    """Curvature estimate that decided the bits of each layer."""

    enabled: bool = key(False, "Turned the estimate on.")
    verbose: bool = key(False, "Printed each estimate.")
    max_iter: Integer = key(100, "Most power iterations.")
    tol: Number = key(0.01, "Relative change at which the iteration stopped.")
    stability: Number = key(1e-06, "Small term against division by zero.")
    gas_boundary_resolution: Integer = key(1, "Accumulation boundaries between estimates.")
    layer_name: str = key("bert.encoder.layer", "Module path of the stack of layers.")
    layer_num: Integer = key(0, "Layers in that stack.")


class QuantizeBits(Block, since="0.4.0", until="0.6.7"):
    """From how many bits to how few."""

    start_bits: Integer = key(16, "Bits at the start.")
    target_bits: Integer = key(8, "Bits at the end.")


class QuantizeSchedule(Block, since="0.4.0", until="0.6.7"):
    """When bits are dropped."""

    quantize_period: Integer = key(1000, "Steps until the next drop.", unit="steps")
    schedule_offset: Integer = key(1000, "Steps before the first drop.", unit="steps")


class QuantizeAlgo(Block, since="0.4.0", until="0.6.7"):
    """How values are rounded."""

    q_type: str = key("symmetric", "Symmetric or asymmetric range.")
    rounding: str = key("nearest", "Nearest or stochastic rounding.")


class Fp16MixedQuantize(Block, since="0.4.0", until="0.6.7"):
    """A slow fade from fp16 to quantised weights."""

    enabled: bool = key(False, "Turned the fade on.")
    quantize_change_ratio: Number = key(0.001, "Share by which the fade advanced per step.")


class QuantizeTraining(Block, since="0.4.0", until="0.19.6"):
    """Mixture of quantisation."""

    enabled: bool = key(False, "Turned it on.", until="0.6.7")
    quantize_bits: OrAbsent[QuantizeBits] = key(None, "First and last width.", until="0.6.7")
    quantize_schedule: OrAbsent[QuantizeSchedule] = key(None, "When to drop.", until="0.6.7")
    quantize_groups: Integer = key(1, "Groups with a scale of their own.", until="0.6.7")
    quantize_algo: OrAbsent[QuantizeAlgo] = key(None, "How to round.", until="0.6.7")
    fp16_mixed_quantize: OrAbsent[Fp16MixedQuantize] = key(
        None, "A slow fade from fp16.", until="0.6.7"
    )
    quantize_verbose: bool = key(False, "Printed each change of width.", until="0.6.7")
    quantizer_kernel: bool = key(False, "Used the fused CUDA kernel.", until="0.6.7")
    eigenvalue: OrAbsent[Eigenvalue] = key(None, "Curvature estimate.", gap=("0.7.0", "0.19.2"))
