"""Blocks that newer releases refuse, and the error feedback of quantised gradients."""

from typing import Literal

from dsconfig.schema.declare import Block, key
from dsconfig.schema.types import Integer, Number, OrAbsent
from dsconfig.schema.value_checks import SPARSITY_MODE


class Amp(Block, until="0.19.7"):
    """Apex mixed precision; further keys went to Apex."""

    enabled: bool = key(False, "Turned Apex on.", replaced_by="torch_autocast.enabled")
    opt_level: OrAbsent[str] = key(
        None, "Apex's level, O0 to O3.", replaced_by="torch_autocast.dtype"
    )


class ProgressiveLayerDrop(Block, since="0.3.1", until="0.19.7"):
    """Skips layers at random, more of them as training goes on."""

    enabled: bool = key(False, "Turned layer dropping on.")
    theta: Number = key(1.0, "Share of layers kept in the end.")
    gamma: Number = key(0.001, "How fast that share is reached.")


class Nebula(Block, since="0.7.0", until="0.19.6"):
    """Azure's checkpoint service."""

    enabled: bool = key(False, "Turned the service on.")
    enable_nebula_load: bool = key(True, "Loads through the service.")
    nebula_load_path: str | None = key(None, "Where to load from.")
    persistent_storage_path: str | None = key(None, "Where checkpoints are kept.")
    persistent_time_interval: Integer = key(100, "Seconds between two that are kept.")
    num_of_version_in_retention: Integer = key(2, "Checkpoints that are kept.")


class SparseAttention(Block, until="0.19.6"):
    """Attention over a fixed pattern of blocks."""

    mode: Literal["dense", "fixed", "variable", "bigbird", "bslongformer"] = key(
        "fixed", "Pattern of the blocks.", checks=(SPARSITY_MODE,)
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


NEW = "data_efficiency.data_sampling.curriculum_learning"
METRIC = f"{NEW}.curriculum_metrics.*"
SCHEDULE = f"{METRIC}.schedule_config"


class ScheduleConfig(Block, since="0.5.0", until="0.19.7"):
    """How difficulty grows."""

    total_curriculum_step: OrAbsent[Integer] = key(
        None, "Steps from easiest to hardest.", replaced_by=f"{SCHEDULE}.total_curriculum_step"
    )
    difficulty_step: OrAbsent[Integer] = key(
        None, "Granularity of the difficulty.", replaced_by=f"{SCHEDULE}.difficulty_step"
    )
    root_degree: OrAbsent[Integer] = key(
        None, "Degree of the root schedule.", replaced_by=f"{SCHEDULE}.root_degree"
    )
    difficulty: OrAbsent[list[Integer]] = key(
        None, "Difficulties of the discrete schedule.", replaced_by=f"{SCHEDULE}.difficulty"
    )
    max_step: OrAbsent[list[Integer]] = key(
        None, "Last step of each difficulty.", replaced_by=f"{SCHEDULE}.max_step"
    )


class CurriculumLearning(Block, since="0.5.0", until="0.19.7"):
    """Easy samples first."""

    enabled: bool = key(False, "Turned the curriculum on.", replaced_by=NEW)
    curriculum_type: OrAbsent[str] = key(
        None, "What difficulty means; sequence length in practice.", replaced_by=NEW
    )
    min_difficulty: OrAbsent[Integer] = key(
        None, "Difficulty at the start.", replaced_by=f"{METRIC}.min_difficulty"
    )
    max_difficulty: OrAbsent[Integer] = key(
        None, "Difficulty at the end.", replaced_by=f"{METRIC}.max_difficulty"
    )
    schedule_type: OrAbsent[str] = key(
        None, "Shape of the growth.", replaced_by=f"{METRIC}.schedule_type"
    )
    schedule_config: OrAbsent[ScheduleConfig] = key(
        None, "Arguments of the growth.", replaced_by=SCHEDULE
    )


class Elasticity(Block, since="0.3.9", until="0.19.7"):
    """A global batch chosen so that many numbers of GPUs divide it."""

    enabled: bool = key(False, "Lets the batch sizes be chosen.")
    max_train_batch_size: Integer = key(2000, "Largest global batch.")
    micro_batch_sizes: list[Integer] = key([2, 4, 6], "Micro batches to choose from.")
    min_gpus: Integer = key(1, "Fewest GPUs.")
    max_gpus: Integer = key(10_000, "Most GPUs.")
    num_gpus_per_node: Integer = key(1, "GPUs per node.", since="0.7.0")
    model_parallel_size: Integer = key(1, "Ranks that share one copy of the model.", since="0.7.0")
    min_time: Integer = key(0, "Minutes between two rescales.", was={"0.3.10": "20"})
    prefer_larger_batch: bool = key(True, "Breaks ties towards the larger batch.")
    ignore_non_elastic_batch_info: bool = key(
        False, "Overrides batch sizes that the file sets itself."
    )
    version: Number = key(0.2, "Version of the algorithm.", was={"0.7.0": 0.1})


class LoCo(Block, since="0.16.2", until="0.19.7", closed="0.16.2"):
    """Error feedback for quantised gradients."""

    err_beta: Number = key(0.8, "Averaging factor of the error.")
    reset_T: Integer = key(1024, "Steps after which the error is forgotten.", unit="steps")
