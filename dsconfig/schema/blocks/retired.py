"""Blocks that newer releases reject, and LoCo."""

from typing import Literal

from dsconfig.schema.declare import Block, key
from dsconfig.schema.types import Integer, Number, OrAbsent
from dsconfig.schema.value_checks import SPARSITY_MODE


class Amp(Block, until="0.19.7"):
    """Apex mixed precision; other keys were passed to Apex."""

    enabled: bool = key(False, "Enables Apex AMP.", replaced_by="torch_autocast.enabled")
    opt_level: OrAbsent[str] = key(
        None, "Apex optimization level, O0 to O3.", replaced_by="torch_autocast.dtype"
    )


class ProgressiveLayerDrop(Block, since="0.3.1", until="0.19.7"):
    """Progressive layer dropping."""

    enabled: bool = key(False, "Enables progressive layer dropping.")
    theta: Number = key(1.0, "Final fraction of kept layers.")
    gamma: Number = key(0.001, "Rate at which that fraction is approached.")


class Nebula(Block, since="0.7.0", until="0.19.6"):
    """Azure's checkpoint service."""

    enabled: bool = key(False, "Enables the service.")
    enable_nebula_load: bool = key(True, "Load checkpoints through the service.")
    nebula_load_path: str | None = key(None, "Path to load from.")
    persistent_storage_path: str | None = key(None, "Directory of persistent checkpoints.")
    persistent_time_interval: Integer = key(100, "Seconds between two persistent checkpoints.")
    num_of_version_in_retention: Integer = key(2, "Number of checkpoints to keep.")


class SparseAttention(Block, until="0.19.6"):
    """Block-sparse attention."""

    mode: Literal["dense", "fixed", "variable", "bigbird", "bslongformer"] = key(
        "fixed", "Sparsity pattern.", checks=(SPARSITY_MODE,)
    )
    block: Integer = key(16, "Block size in tokens.")
    different_layout_per_head: bool = key(False, "Use a separate pattern per head.")
    num_local_blocks: Integer = key(4, "Blocks per local window; mode fixed.")
    num_global_blocks: Integer = key(1, "Number of global blocks.")
    attention: Literal["bidirectional", "unidirectional"] = key(
        "bidirectional", "Bidirectional or causal attention."
    )
    horizontal_global_attention: bool = key(False, "Let global blocks attend to all blocks.")
    num_different_global_patterns: Integer = key(1, "Number of global patterns across heads.")
    num_random_blocks: Integer = key(0, "Random blocks per row.")
    local_window_blocks: list[Integer] = key([4], "Widths of the local windows; mode variable.")
    global_block_indices: list[Integer] = key([0], "Start indices of global blocks.")
    global_block_end_indices: list[Integer] | None = key(None, "End indices of global blocks.")
    num_sliding_window_blocks: Integer = key(3, "Width of the sliding window.")


class Eigenvalue(Block, since="0.4.0", until="0.19.6"):
    """Eigenvalue estimate that determined the bits of each layer."""

    enabled: bool = key(False, "Enables the estimate.")
    verbose: bool = key(False, "Print each estimate.")
    max_iter: Integer = key(100, "Maximum number of power iterations.")
    tol: Number = key(0.01, "Relative change at which the iteration stops.")
    stability: Number = key(1e-06, "Small term that avoids division by zero.")
    gas_boundary_resolution: Integer = key(1, "Accumulation boundaries between estimates.")
    layer_name: str = key("bert.encoder.layer", "Module path of the layer stack.")
    layer_num: Integer = key(0, "Number of layers in the stack.")


class QuantizeBits(Block, since="0.4.0", until="0.6.7"):
    """Initial and final bit widths."""

    start_bits: Integer = key(16, "Bits at the start.")
    target_bits: Integer = key(8, "Bits at the end.")


class QuantizeSchedule(Block, since="0.4.0", until="0.6.7"):
    """Quantization schedule."""

    quantize_period: Integer = key(
        1000, "Steps between two reductions of the bit width.", unit="steps"
    )
    schedule_offset: Integer = key(1000, "Steps before the first reduction.", unit="steps")


class QuantizeAlgo(Block, since="0.4.0", until="0.6.7"):
    """Quantization algorithm."""

    q_type: str = key("symmetric", "Symmetric or asymmetric range.")
    rounding: str = key("nearest", "Nearest or stochastic rounding.")


class Fp16MixedQuantize(Block, since="0.4.0", until="0.6.7"):
    """Gradual transition from fp16 to quantized weights."""

    enabled: bool = key(False, "Enables the gradual transition.")
    quantize_change_ratio: Number = key(0.001, "Fraction of the transition per step.")


class QuantizeTraining(Block, since="0.4.0", until="0.19.6"):
    """MoQ: mixture of quantization."""

    enabled: bool = key(False, "Enables MoQ.", until="0.6.7")
    quantize_bits: OrAbsent[QuantizeBits] = key(
        None, "Initial and final bit widths.", until="0.6.7"
    )
    quantize_schedule: OrAbsent[QuantizeSchedule] = key(
        None, "Quantization schedule.", until="0.6.7"
    )
    quantize_groups: Integer = key(1, "Number of groups with separate scales.", until="0.6.7")
    quantize_algo: OrAbsent[QuantizeAlgo] = key(None, "Quantization algorithm.", until="0.6.7")
    fp16_mixed_quantize: OrAbsent[Fp16MixedQuantize] = key(
        None, "Gradual transition from fp16.", until="0.6.7"
    )
    quantize_verbose: bool = key(False, "Print each change of bit width.", until="0.6.7")
    quantizer_kernel: bool = key(False, "Use the fused CUDA kernel.", until="0.6.7")
    eigenvalue: OrAbsent[Eigenvalue] = key(None, "Eigenvalue estimate.", gap=("0.7.0", "0.19.2"))


NEW = "data_efficiency.data_sampling.curriculum_learning"
METRIC = f"{NEW}.curriculum_metrics.*"
SCHEDULE = f"{METRIC}.schedule_config"


class ScheduleConfig(Block, since="0.5.0", until="0.19.7"):
    """Difficulty schedule."""

    total_curriculum_step: OrAbsent[Integer] = key(
        None,
        "Steps from minimum to maximum difficulty.",
        replaced_by=f"{SCHEDULE}.total_curriculum_step",
    )
    difficulty_step: OrAbsent[Integer] = key(
        None, "Granularity of the difficulty.", replaced_by=f"{SCHEDULE}.difficulty_step"
    )
    root_degree: OrAbsent[Integer] = key(
        None, "Degree of the root schedule.", replaced_by=f"{SCHEDULE}.root_degree"
    )
    difficulty: OrAbsent[list[Integer]] = key(
        None, "Difficulty levels of the discrete schedule.", replaced_by=f"{SCHEDULE}.difficulty"
    )
    max_step: OrAbsent[list[Integer]] = key(
        None, "Last step of each difficulty level.", replaced_by=f"{SCHEDULE}.max_step"
    )


class CurriculumLearning(Block, since="0.5.0", until="0.19.7"):
    """Curriculum learning in its first form."""

    enabled: bool = key(False, "Enables curriculum learning.", replaced_by=NEW)
    curriculum_type: OrAbsent[str] = key(
        None, "Difficulty metric; sequence length in practice.", replaced_by=NEW
    )
    min_difficulty: OrAbsent[Integer] = key(
        None, "Initial difficulty.", replaced_by=f"{METRIC}.min_difficulty"
    )
    max_difficulty: OrAbsent[Integer] = key(
        None, "Final difficulty.", replaced_by=f"{METRIC}.max_difficulty"
    )
    schedule_type: OrAbsent[str] = key(
        None, "Shape of the schedule.", replaced_by=f"{METRIC}.schedule_type"
    )
    schedule_config: OrAbsent[ScheduleConfig] = key(
        None, "Arguments of the schedule.", replaced_by=SCHEDULE
    )


class Elasticity(Block, since="0.3.9", until="0.19.7"):
    """Elastic training: a global batch that many GPU counts divide."""

    enabled: bool = key(False, "Enables elastic training.")
    max_train_batch_size: Integer = key(2000, "Maximum global batch.")
    micro_batch_sizes: list[Integer] = key([2, 4, 6], "Micro batches to choose from.")
    min_gpus: Integer = key(1, "Minimum number of GPUs.")
    max_gpus: Integer = key(10_000, "Maximum number of GPUs.")
    num_gpus_per_node: Integer = key(1, "GPUs per node.", since="0.7.0")
    model_parallel_size: Integer = key(1, "Model-parallel degree.", since="0.7.0")
    min_time: Integer = key(0, "Minimum minutes between two rescales.", was={"0.3.10": "20"})
    prefer_larger_batch: bool = key(True, "Prefer the larger batch in a tie.")
    ignore_non_elastic_batch_info: bool = key(False, "Override batch sizes set in the config.")
    version: Number = key(0.2, "Version of the algorithm.", was={"0.7.0": 0.1})


class LoCo(Block, since="0.16.2", until="0.19.7", closed="0.16.2"):
    """LoCo: error feedback for quantized gradients."""

    err_beta: Number = key(0.8, "Averaging factor of the error.")
    reset_T: Integer = key(1024, "Steps after which the error is reset.", unit="steps")
