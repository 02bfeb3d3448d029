"""ZeRO: sharding, communication and offload."""

from dsconfig.schema.declare import Block, ReadAs, key
from dsconfig.schema.lazy import lazy_blocks
from dsconfig.schema.markers import Bounds
from dsconfig.schema.types import Integer, Natural, OrAbsent, OrAuto, Positive, Stage

with lazy_blocks():
    from dsconfig.schema.blocks.retired import LoCo
    from dsconfig.schema.blocks.zero_extras import LeafModule, ZenFlow
    from dsconfig.schema.blocks.zero_offload import OffloadOptimizer, OffloadParam


class ZeroOptimization(Block, closed="0.7.0"):
    """ZeRO: sharding, communication and offload."""

    stage: OrAuto[Stage] = key(
        0,
        "What is sharded: 0 nothing, 1 optimizer states, 2 also gradients, 3 also parameters.",
        memory="per weight with Adam at 16 bit: 16 bytes at stage 0, on N ranks"
        " 4 + 12/N at 1, 2 + 14/N at 2, 16/N at 3",
        see=("zero_optimization.offload_optimizer", "zero_optimization.offload_param"),
    )

    # Buckets and overlap.
    overlap_comm: OrAuto[bool] | None = key(
        None,
        "Overlap gradient reduction with backward; null: true at stage 3, else false.",
        memory="a second set of buckets; the 4.5x rule counts 4.5 times the bucket bytes",
        see=("zero_optimization.reduce_bucket_size", "zero_optimization.allgather_bucket_size"),
        stages=(1, 2, 3),
    )
    reduce_bucket_size: OrAuto[Positive] = key(
        500_000_000,
        "Gradient elements reduced at a time.",
        unit="elements",
        bounds_was={"0.19.6": Bounds(minimum=0)},
        memory="one gradient bucket, two with overlap_comm",
        see=("zero_optimization.overlap_comm", "zero_optimization.allgather_bucket_size"),
        stages=(1, 2, 3),
    )
    allgather_bucket_size: OrAuto[Natural] = key(
        500_000_000,
        "Parameter elements all-gathered at a time after the step; stages 1 and 2. Must be even.",
        unit="elements",
        memory="one parameter bucket during the all-gather",
        see=("zero_optimization.reduce_bucket_size",),
        stages=(1, 2),
    )
    contiguous_gradients: bool = key(
        True,
        "Copy gradients to a contiguous buffer; always on with optimizer offload.",
        was={"0.4.3": False},
        memory="less fragmentation during backward",
        stages=(1, 2, 3),
    )
    reduce_scatter: bool = key(
        True,
        "Reduce-scatter gradients instead of all-reducing them.",
        was={"0.3.16": True, "0.4.0": False},
        stages=(1, 2, 3),
    )
    allgather_partitions: bool = key(True, "Stored by DeepSpeed but never read.")
    use_multi_rank_bucket_allreduce: bool = key(
        True,
        "Combine the buckets of several ranks in one all-reduce; stages 1 and 2.",
        since="0.12.4",
        stages=(1, 2),
    )
    round_robin_gradients: bool = key(
        False,
        "Distribute gradient copies to the CPU over ranks; stages 1 and 2.",
        since="0.4.4",
        stages=(1, 2),
    )
    compute_grad_norm: bool = key(
        True,
        "Compute the global gradient norm; false requires stage 1 or 2, clipping 0 and no offload.",
        since="0.19.7",
        see=("gradient_clipping",),
    )
    ignore_unused_parameters: bool = key(
        True,
        "Accept parameters without a gradient; stages 1 and 2.",
        since="0.4.0",
        stages=(1, 2),
    )
    parameter_alignment: bool = key(
        False,
        "Align each tensor of a flat buffer to 16 bytes; stages 1 and 2.",
        since="0.19.7",
        stages=(1, 2),
    )

    # Offload.
    offload_optimizer: OffloadOptimizer | None = key(
        None,
        "Offload optimizer states and the optimizer step.",
        since="0.3.15",
        stages=(1, 2, 3),
    )
    offload_param: OffloadParam | None = key(
        None, "Offload parameters; stage 3 only.", since="0.3.15", stages=(3,)
    )
    sub_group_size: OrAuto[Natural] = key(
        1_000_000_000,
        "Parameter elements updated at a time; stage 3.",
        unit="elements",
        since="0.3.12",
        was={"0.4.1": 1_000_000_000_000},
        memory="temporary fp32 copies of one tile during the step",
        stages=(3,),
    )
    zenflow: ZenFlow | None = key(
        None, "ZenFlow: optimizer offload without waiting for the CPU.", since="0.17.5"
    )
    save_muon_momentum_buffer_in_memory: bool = key(
        False,
        "Keep Muon's momentum in memory instead of on NVMe; stage 3.",
        since="0.18.9",
        stages=(3,),
    )

    # Stage 3 gathering.
    stage3_prefetch_bucket_size: OrAuto[Natural] = key(
        50_000_000,
        "Parameter elements prefetched.",
        unit="elements",
        since="0.3.12",
        spelled=("stage3_prefetch_bucket_size", "prefetch_bucket_size"),
        memory="up to that many gathered elements",
        stages=(3,),
    )
    stage3_param_persistence_threshold: OrAuto[Natural] = key(
        100_000,
        "Parameters smaller than this stay gathered (unsharded) on every rank.",
        unit="elements",
        since="0.3.12",
        spelled=("stage3_param_persistence_threshold", "param_persistence_threshold"),
        memory="these parameters, unsharded, on every rank",
        stages=(3,),
    )
    stage3_model_persistence_threshold: Natural = key(
        9_223_372_036_854_775_807,
        "Maximum number of elements that stay gathered.",
        unit="elements",
        since="0.7.0",
        spelled=("stage3_model_persistence_threshold", "model_persistence_threshold"),
        stages=(3,),
    )
    stage3_max_live_parameters: Natural = key(
        1_000_000_000,
        "Maximum number of gathered parameter elements per GPU.",
        unit="elements",
        since="0.3.12",
        spelled=("stage3_max_live_parameters", "max_live_parameters"),
        memory="up to that many gathered elements",
        stages=(3,),
    )
    stage3_max_reuse_distance: Natural = key(
        1_000_000_000,
        "Keep a parameter gathered if it is reused within this many elements.",
        unit="elements",
        since="0.3.12",
        spelled=("stage3_max_reuse_distance", "max_reuse_distance"),
        stages=(3,),
    )
    stage3_module_granularity_threshold: Integer = key(
        0,
        "Gather a module as one unit if its submodules have fewer parameters on average.",
        since="0.16.0",
        spelled=("stage3_module_granularity_threshold", "module_granularity_threshold"),
        stages=(3,),
    )
    stage3_use_all_reduce_for_fetch_params: bool = key(
        False,
        "Gather parameters by all-reduce instead of all-gather.",
        since="0.14.3",
        spelled=("stage3_use_all_reduce_for_fetch_params", "use_all_reduce_for_fetch_params"),
        stages=(3,),
    )
    stage3_allgather_sequential: bool = key(
        False,
        "Gather one parameter at a time, without prefetching.",
        since="0.18.5",
        spelled=("stage3_allgather_sequential", "allgather_sequential"),
        stages=(3,),
    )
    stage3_gather_16bit_weights_on_model_save: OrAuto[bool] = key(
        False,
        "Gather full weights at stage 3 in save_16bit_model, which otherwise saves nothing.",
        since="0.6.0",
        spelled=(
            "stage3_gather_16bit_weights_on_model_save",
            "gather_16bit_weights_on_model_save",
        ),
        memory="2 bytes per weight in host memory of rank 0 during the save",
        stages=(3,),
    )
    leaf_module: OrAbsent[LeafModule] = key(
        None,
        "Modules that stage 3 gathers as one unit.",
        since="0.18.0",
        takes_null=True,
        stages=(3,),
    )
    memory_efficient_linear: bool = key(
        True,
        "Use a linear layer that saves less for backward; under zero.Init.",
        since="0.9.0",
        stages=(3,),
    )
    override_module_apply: bool = key(
        True, "Gather full weights for Module.apply.", since="0.10.1", stages=(3,)
    )
    log_trace_cache_warnings: bool = key(
        False, "Warn when the parameter trace is invalidated.", since="0.16.4", stages=(3,)
    )
    enable_sanity_checks: bool = key(
        False, "Enable internal consistency checks.", since="0.17.6", stages=(3,)
    )

    # ZeRO++.
    zero_hpz_partition_size: Natural = key(
        1,
        "Ranks per secondary parameter shard (hpZ), usually one node; 1: disabled.",
        since="0.10.0",
        memory="2 bytes per weight, divided by this many ranks",
        stages=(3,),
    )
    zero_quantized_weights: bool = key(
        False, "Quantize weights to 8 bits for all-gather (qwZ).", since="0.10.0", stages=(3,)
    )
    zero_quantized_nontrainable_weights: bool = key(
        False, "Keep frozen weights in 8 bits.", since="0.10.2", stages=(3,)
    )
    zero_quantized_gradients: bool = key(
        False,
        "Quantize gradients to 4 bits for reduction (qgZ); stage 3.",
        since="0.10.0",
        stages=(3,),
    )
    zeropp_loco_param: LoCo | None = key(
        None,
        "LoCo: error feedback for quantized gradients.",
        read_as=ReadAs.DICT,
        since="0.16.2",
        refused="0.19.8",
        instead="delete it; quantized gradients work without error feedback",
    )
    mics_shard_size: Integer = key(
        -1,
        "Ranks per MiCS shard group; -1: disabled.",
        since="0.9.2",
        refused="0.19.7",
        instead="delete it, or use zero_hpz_partition_size",
        in_engine=True,
    )
    mics_hierarchical_params_gather: bool = key(
        False,
        "Gather within a node first (MiCS).",
        since="0.9.2",
        refused="0.19.7",
        instead="delete it, or use zero_hpz_partition_size",
    )

    # Checkpoints.
    load_from_fp32_weights: bool = key(
        True,
        "Load master weights from the checkpoint's fp32 weights instead of its 16-bit weights.",
        stages=(1, 2, 3),
    )
    pipeline_loading_checkpoint: bool = key(
        False,
        "Load checkpoints rank by rank to save host memory; stage 3.",
        since="0.10.1",
        stages=(3,),
    )
    elastic_checkpoint: bool = key(
        False,
        "Save states that can be loaded with a different number of ranks; stages 1 and 2.",
        since="0.3.3",
        was={"0.5.10": True},
        replaced_by="checkpoint.load_universal",
        deprecated="0.15.0",
        instead='write "load_universal": true in checkpoint',
    )

    # Old names and switches.
    cpu_offload: bool | None = key(
        None,
        "Old switch for optimizer offload.",
        was={"0.7.0": False},
        replaced_by="zero_optimization.offload_optimizer",
        deprecated="0.3.15",
        instead='write "offload_optimizer": {"device": "cpu"}',
        stages=(1, 2, 3),
    )
    cpu_offload_param: bool | None = key(
        None,
        "Old switch for parameter offload.",
        since="0.7.0",
        replaced_by="zero_optimization.offload_param",
        deprecated="0.7.0",
        instead='write "offload_param": {"device": "cpu"}',
        stages=(3,),
    )
    cpu_offload_params: bool = key(
        False,
        "First name of the old switch for parameter offload.",
        since="0.3.12",
        until="0.6.7",
        replaced_by="zero_optimization.offload_param",
        renamed="0.7.0",
        instead='write "offload_param": {"device": "cpu"}',
    )
    cpu_offload_use_pin_memory: bool | None = key(
        None,
        "Old switch for pinned memory; DeepSpeed ignores it.",
        since="0.3.12",
        gap=("0.4.0", "0.6.7"),
        was={"0.7.0": False},
        replaced_by="zero_optimization.offload_optimizer.pin_memory",
        deprecated="0.4.0",
        instead='write "pin_memory" in offload_param or offload_optimizer',
    )
    stage3_gather_fp16_weights_on_model_save: bool = key(
        False,
        "Old name of stage3_gather_16bit_weights_on_model_save.",
        since="0.3.14",
        replaced_by="zero_optimization.stage3_gather_16bit_weights_on_model_save",
        deprecated="0.6.0",
        instead='write "stage3_gather_16bit_weights_on_model_save"',
        stages=(3,),
    )
    find_unused_parameters: bool = key(
        True,
        "Opposite of ignore_unused_parameters.",
        since="0.3.16",
        until="0.3.16",
        replaced_by="zero_optimization.ignore_unused_parameters",
        renamed="0.4.0",
        instead='write "ignore_unused_parameters", which has the opposite meaning',
    )
    legacy_stage1: bool = key(
        False, "Old implementation of stage 1; true is rejected.", since="0.4.0"
    )
    grad_hooks: bool = key(True, "Documented but not read by any release.", status="docs_only")
