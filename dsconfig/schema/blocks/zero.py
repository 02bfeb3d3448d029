"""ZeRO."""

from typing import Literal

from dsconfig.schema.declare import ACCELERATE, TRAINER, Block, key
from dsconfig.schema.types import (
    Integer,
    Natural,
    Number,
    OpenShare,
    OrAbsent,
    OrAuto,
    OrNativeAuto,
    Positive,
    Share,
    Stage,
)


class OffloadParam(Block, since="0.3.15", closed="0.7.0"):
    """Moves parameters to CPU or NVMe (stage 3 only)."""

    device: OrAuto[Literal["cpu", "none", "nvme"]] = key(
        "none",
        "Where parameters live; none leaves them on the device (the docs wrongly give cpu as default).",
        was={"0.5.7": "cpu", "0.7.0": None},
        auto=ACCELERATE,
    )
    nvme_path: OrAuto[str] | None = key(
        None,
        "NVMe directory; required once device is nvme but checked only when stage 3 starts.",
        auto=ACCELERATE,
    )
    buffer_count: Natural = key(5, "Staging buffers for NVMe traffic.")
    buffer_size: Natural = key(100_000_000, "Elements per staging buffer.", unit="elements")
    max_in_cpu: Natural = key(
        1_000_000_000, "Parameter elements kept in host memory when NVMe is used.", unit="elements"
    )
    pin_memory: bool = key(True, "Page-locked host memory.", was={"0.19.5": False})


class OffloadOptimizer(Block, since="0.3.15", closed="0.7.0"):
    """Moves optimizer states and the update to CPU or NVMe."""

    device: OrAuto[Literal["cpu", "none", "nvme"]] = key(
        "none",
        "Where optimizer states live; any value but none also runs the update on the CPU.",
        was={"0.5.7": "cpu", "0.7.0": None},
        auto=ACCELERATE,
    )
    nvme_path: OrAuto[str] | None = key(
        None,
        "NVMe directory; required once device is nvme but not checked at parse.",
        auto=ACCELERATE,
    )
    buffer_count: Natural = key(4, "Staging buffers for optimizer states; 4 suits Adam.")
    pin_memory: bool = key(True, "Page-locked host memory.", was={"0.19.5": False})
    pipeline_read: bool = key(False, "Overlaps reading the next tile with the update of this one.")
    pipeline_write: bool = key(
        False, "Overlaps writing the previous tile with the update of this one."
    )
    fast_init: bool = key(False, "Quicker start of NVMe states.")
    ratio: Share = key(
        1.0, "Share of optimizer states updated on the CPU; below 1 needs stage 3.", since="0.12.3"
    )
    super_offload: bool = key(
        False,
        "Superchip offload path for stage 3; ignored at stage 1/2 and needs CUDA.",
        since="0.18.0",
    )
    cpuadam_cores_perc: Share = key(
        0.8, "Share of CPU cores given to the SuperOffload Adam worker.", since="0.18.0"
    )


class Zenflow(Block, since="0.17.5", closed="0.17.5"):
    """Stall-free offload that updates the most important gradients first."""

    topk_ratio: OpenShare = key(
        0.1, "Share of gradient columns treated as important; strictly between 0 and 1."
    )
    select_strategy: Literal["auto", "step", "epoch"] = key(
        "auto", "How the refresh of important columns is scheduled."
    )
    select_interval: OrNativeAuto[Integer] = key(
        "auto", "Steps or epochs between refreshes, or auto."
    )
    update_interval: OrNativeAuto[Integer] = key(
        "auto",
        "Steps between applying the unimportant gradients, or auto; a number must be at least 1.",
    )
    overlap_step: bool = key(False, "Runs the CPU update beside forward and backward.")
    offload: bool = key(
        False, "Keeps the selective optimizer's states on the CPU; needs overlap_comm at stage 1/2."
    )
    auto_ratio: Share = key(0.99, "Threshold of the automatic update interval.")
    full_warm_up_rounds: Integer = key(
        0, "Opening rounds in which everything is updated.", unit="steps"
    )
    pt_reserved_cores_perc: Share = key(
        0.5, "Share of cores left to PyTorch threads.", since="0.17.6"
    )
    steps_per_epoch: Integer | None = key(
        None, "Filled in by the engine; users should not set it.", unit="steps"
    )


class LeafModule(Block, since="0.18.0", closed="0.18.0"):
    """Modules that stage 3 hooks as one unit."""

    classes: list[str] = key(
        [
            "transformers.models.mixtral.modeling_mixtral.MixtralSparseMoeBlock",
            "transformers.models.qwen2_moe.modeling_qwen2_moe.Qwen2MoeSparseMoeBlock",
            "transformers.models.qwen3_moe.modeling_qwen3_moe.Qwen3MoeSparseMoeBlock",
        ],
        "Class paths handled as leaves; a single string is wrapped in a list.",
    )
    names: list[str] = key([], "Exact module names handled as leaves.")
    name_suffixes: list[str] = key([], "Module-name endings handled as leaves.")


class ZeroppLocoParam(Block, since="0.16.2", until="0.19.7"):
    """LoCo error feedback for ZeRO++ gradients."""

    err_beta: Number = key(0.8, "Moving-average factor of the LoCo error.")
    reset_T: Integer = key(1024, "Steps between resets of the LoCo error buffer.", unit="steps")


class ZeroOptimization(Block, closed="0.7.0"):
    """ZeRO settings; a bare boolean is the old form (true means stage 1)."""

    stage: OrAuto[Stage] = key(
        0,
        "ZeRO level: 0 off, 1 optimizer states, 2 plus gradients, 3 plus parameters.",
        auto=ACCELERATE,
    )
    contiguous_gradients: bool = key(
        True,
        "Packs gradients into one buffer as they appear; optimizer offload switches it on anyway.",
        was={"0.4.3": False},
    )
    reduce_scatter: bool = key(
        True,
        "Averages with reduce-scatter rather than all-reduce.",
        was={"0.3.16": True, "0.4.0": False},
    )
    reduce_bucket_size: OrAuto[Positive] = key(
        500_000_000, "Gradient elements gathered into one reduction.", unit="elements", auto=TRAINER
    )
    use_multi_rank_bucket_allreduce: bool = key(
        True,
        "Merges the buckets of several ranks into a single all-reduce (stage 1/2).",
        since="0.12.4",
    )
    allgather_partitions: bool = key(
        True,
        "Refreshes parameters with all-gather instead of broadcasts (no consumer besides the getter).",
    )
    allgather_bucket_size: Natural = key(
        500_000_000,
        "Elements per all-gather of updated parameters; stage 1/2 need an even number.",
        unit="elements",
    )
    overlap_comm: bool | None = key(
        None, "Overlaps reduction with backward; unset means on for stage 3 and off otherwise."
    )
    compute_grad_norm: bool = key(
        True,
        "Computes the global gradient norm; false needs stage 1/2, gradient_clipping 0 and no optimizer offload.",
        since="0.19.7",
    )
    load_from_fp32_weights: bool = key(
        True, "Takes fp32 master weights from the checkpoint instead of casting the 16-bit copy."
    )
    elastic_checkpoint: bool = key(
        False,
        "Stage 1/2: saves optimizer state without padding so that another world size can load it; at stage 3 it only warns.",
        since="0.3.3",
        was={"0.5.10": True},
        replaced_by="checkpoint.load_universal",
    )
    offload_param: OffloadParam | None = key(
        None, "Moves parameters to CPU or NVMe (stage 3 only).", since="0.3.15"
    )
    offload_optimizer: OffloadOptimizer | None = key(
        None, "Moves optimizer states and the update to CPU or NVMe.", since="0.3.15"
    )
    zenflow: Zenflow | None = key(
        None, "Stall-free offload that updates the most important gradients first.", since="0.17.5"
    )
    sub_group_size: Natural = key(
        1_000_000_000,
        "Elements per optimizer tile in stage 3.",
        unit="elements",
        since="0.3.12",
        was={"0.4.1": 1_000_000_000_000},
    )
    cpu_offload_param: bool | None = key(
        None, "Old switch for parameter offload.", since="0.7.0", replaced_by="offload_param"
    )
    cpu_offload_use_pin_memory: bool | None = key(
        None,
        "Old switch for pinned host memory; the value is dropped.",
        since="0.3.12",
        was={"0.7.0": False},
        replaced_by="offload_param or offload_optimizer",
    )
    cpu_offload: bool | None = key(
        None,
        "Old switch for optimizer offload.",
        was={"0.7.0": False},
        replaced_by="offload_optimizer",
    )
    stage3_prefetch_bucket_size: OrAuto[Natural] = key(
        50_000_000,
        "Most parameter elements fetched ahead of use in stage 3.",
        unit="elements",
        since="0.3.12",
        auto=TRAINER,
        spelled=("stage3_prefetch_bucket_size", "prefetch_bucket_size"),
    )
    stage3_param_persistence_threshold: OrAuto[Natural] = key(
        100_000,
        "Parameters smaller than this many elements stay whole on every rank in stage 3.",
        unit="elements",
        since="0.3.12",
        auto=TRAINER,
        spelled=("stage3_param_persistence_threshold", "param_persistence_threshold"),
    )
    stage3_model_persistence_threshold: Natural = key(
        9223372036854775807,
        "Upper bound on the total number of elements kept whole in stage 3.",
        unit="elements",
        since="0.7.0",
        spelled=("stage3_model_persistence_threshold", "model_persistence_threshold"),
    )
    stage3_max_live_parameters: Natural = key(
        1_000_000_000,
        "Most gathered elements resident per device before release.",
        unit="elements",
        since="0.3.12",
        spelled=("stage3_max_live_parameters", "max_live_parameters"),
    )
    stage3_max_reuse_distance: Natural = key(
        1_000_000_000,
        "A gathered parameter is kept when its next use is closer than this many elements.",
        unit="elements",
        since="0.3.12",
        spelled=("stage3_max_reuse_distance", "max_reuse_distance"),
    )
    stage3_gather_16bit_weights_on_model_save: OrAuto[bool] = key(
        False,
        "Lets save_16bit_model gather the full weights under stage 3.",
        since="0.6.0",
        auto=ACCELERATE,
        spelled=("stage3_gather_16bit_weights_on_model_save", "gather_16bit_weights_on_model_save"),
    )
    stage3_module_granularity_threshold: Integer = key(
        0,
        "Modules with a smaller parameters-per-submodule ratio are fetched as one unit.",
        since="0.16.0",
        spelled=("stage3_module_granularity_threshold", "module_granularity_threshold"),
    )
    stage3_use_all_reduce_for_fetch_params: bool = key(
        False,
        "Fetches stage 3 parameters with all-reduce instead of all-gather.",
        since="0.14.3",
        spelled=("stage3_use_all_reduce_for_fetch_params", "use_all_reduce_for_fetch_params"),
    )
    stage3_allgather_sequential: bool = key(
        False,
        "Gathers stage 3 parameters one at a time and sets the prefetch bucket to 1.",
        since="0.18.5",
        spelled=("stage3_allgather_sequential", "allgather_sequential"),
    )
    stage3_gather_fp16_weights_on_model_save: bool = key(
        False,
        "Old name of the 16-bit gather switch.",
        since="0.3.14",
        replaced_by="gather_16bit_weights_on_model_save",
    )
    ignore_unused_parameters: bool = key(
        True, "Accepts parameters without gradients in stage 1/2.", since="0.4.0"
    )
    legacy_stage1: bool = key(
        False, "Old stage 1 code path; the engine always raises when true.", since="0.4.0"
    )
    round_robin_gradients: bool = key(
        False, "Spreads gradient copies to the host over ranks (stage 1/2).", since="0.4.4"
    )
    parameter_alignment: bool = key(
        False,
        "Pads stage 1/2 flat buffers so that every tensor starts on 16 bytes (new after 0.19.6).",
        since="0.19.7",
    )
    zero_hpz_partition_size: Natural = key(
        1,
        "ZeRO++ secondary partition size in ranks, usually the GPUs of one node; 1 is off.",
        since="0.10.0",
    )
    zero_quantized_weights: bool = key(
        False, "ZeRO++ quantised parameter all-gather (qwZ).", since="0.10.0"
    )
    zero_quantized_nontrainable_weights: bool = key(
        False, "Stores frozen weights quantised.", since="0.10.2"
    )
    zero_quantized_gradients: bool = key(
        False, "ZeRO++ quantised gradient reduction (qgZ).", since="0.10.0"
    )
    memory_efficient_linear: bool = key(
        True, "Swaps in a linear that stores less for backward under zero.Init.", since="0.9.0"
    )
    pipeline_loading_checkpoint: bool = key(
        False, "Loads stage 3 checkpoints rank by rank to limit host memory.", since="0.10.1"
    )
    override_module_apply: bool = key(
        True, "Wraps nn.Module.apply so that it works on partitioned weights.", since="0.10.1"
    )
    log_trace_cache_warnings: bool = key(
        False, "Logs when the stage 3 fetch trace is thrown away.", since="0.16.4"
    )
    enable_sanity_checks: bool = key(
        False, "Adds internal consistency checks in stage 3.", since="0.17.6"
    )
    save_muon_momentum_buffer_in_memory: bool = key(
        False, "Keeps Muon momentum out of NVMe under stage 3.", since="0.18.9"
    )
    leaf_module: OrAbsent[LeafModule] = key(
        None, "Modules that stage 3 hooks as one unit.", since="0.18.0"
    )
    mics_shard_size: Integer = key(-1, "MiCS sharding group size.", since="0.9.2", until="0.19.6")
    mics_hierarchical_params_gather: bool = key(
        False, "MiCS two-level gather.", since="0.9.2", until="0.19.6"
    )
    zeropp_loco_param: ZeroppLocoParam | None = key(
        None, "LoCo error feedback for ZeRO++ gradients.", since="0.16.2", until="0.19.7"
    )
    grad_hooks: bool = key(
        True,
        "In the documentation only: no code reads it and the parser rejects it.",
        status="docs_only",
    )
    cpu_offload_params: bool = key(
        False,
        "Old switch for parameter offload.",
        since="0.3.12",
        until="0.6.7",
        replaced_by="zero_optimization.offload_param",
    )
    find_unused_parameters: bool = key(
        True,
        "Old name with the opposite meaning of ignore_unused_parameters.",
        since="0.3.16",
        until="0.3.16",
        replaced_by="zero_optimization.ignore_unused_parameters",
    )
