"""ZeRO: what is sharded, how it travels, where it rests."""

from dsconfig.schema.declare import Block, ReadAs, key
from dsconfig.schema.lazy import lazy_blocks
from dsconfig.schema.markers import Bounds
from dsconfig.schema.types import Integer, Natural, OrAbsent, OrAuto, Positive, Stage

with lazy_blocks():
    from dsconfig.schema.blocks.retired import LoCo
    from dsconfig.schema.blocks.zero_extras import LeafModule, ZenFlow
    from dsconfig.schema.blocks.zero_offload import OffloadOptimizer, OffloadParam


class ZeroOptimization(Block, closed="0.7.0"):
    """ZeRO: what is sharded, how it travels, where it rests."""

    stage: OrAuto[Stage] = key(
        0,
        "What the ranks share: 0 nothing, 1 optimizer states, 2 also gradients, 3 also parameters.",
        memory="per weight with Adam at 16 bit: 16 bytes at stage 0, on N ranks"
        " 4 + 12/N at 1, 2 + 14/N at 2, 16/N at 3",
        see=("zero_optimization.offload_optimizer", "zero_optimization.offload_param"),
    )

    # Buckets and overlap.
    overlap_comm: OrAuto[bool] | None = key(
        None,
        "Reduces gradients while backward runs; null is true at stage 3, else false.",
        memory="a second set of buckets; the 4.5x rule counts 4.5 times the bucket bytes",
        see=("zero_optimization.reduce_bucket_size", "zero_optimization.allgather_bucket_size"),
        stages=(1, 2, 3),
    )
    reduce_bucket_size: OrAuto[Positive] = key(
        500_000_000,
        "Gradients that travel in one reduction.",
        unit="elements",
        bounds_was={"0.19.6": Bounds(minimum=0)},
        memory="one bucket of gradients, two with overlap_comm",
        see=("zero_optimization.overlap_comm", "zero_optimization.allgather_bucket_size"),
        stages=(1, 2, 3),
    )
    allgather_bucket_size: OrAuto[Natural] = key(
        500_000_000,
        "Updated parameters that travel in one all-gather; even at stages 1 and 2.",
        unit="elements",
        memory="one bucket of parameters while they are gathered",
        see=("zero_optimization.reduce_bucket_size",),
        stages=(1, 2),
    )
    contiguous_gradients: bool = key(
        True,
        "Packs gradients into one buffer as they appear; optimizer offload forces it on.",
        was={"0.4.3": False},
        memory="less fragmentation during backward",
        stages=(1, 2, 3),
    )
    reduce_scatter: bool = key(
        True,
        "Sends each rank its own share of the sum, not all of it.",
        was={"0.3.16": True, "0.4.0": False},
        stages=(1, 2, 3),
    )
    allgather_partitions: bool = key(True, "Stored by DeepSpeed and read by nothing.")
    use_multi_rank_bucket_allreduce: bool = key(
        True,
        "Merges the buckets of several ranks into one all-reduce; stages 1 and 2.",
        since="0.12.4",
        stages=(1, 2),
    )
    round_robin_gradients: bool = key(
        False,
        "Spreads copies of gradients to the host over ranks; stages 1 and 2.",
        since="0.4.4",
        stages=(1, 2),
    )
    compute_grad_norm: bool = key(
        True,
        "False skips the global norm; needs stage 1 or 2, clipping 0 and no optimizer offload.",
        since="0.19.7",
        see=("gradient_clipping",),
    )
    ignore_unused_parameters: bool = key(
        True,
        "Accepts parameters that got no gradient; stages 1 and 2.",
        since="0.4.0",
        stages=(1, 2),
    )
    parameter_alignment: bool = key(
        False,
        "Starts each tensor of a flat buffer on 16 bytes; stages 1 and 2.",
        since="0.19.7",
        stages=(1, 2),
    )

    # Offload.
    offload_optimizer: OffloadOptimizer | None = key(
        None,
        "Optimizer states, and the update itself, off the device.",
        since="0.3.15",
        stages=(1, 2, 3),
    )
    offload_param: OffloadParam | None = key(
        None, "Parameters off the device; stage 3 alone.", since="0.3.15", stages=(3,)
    )
    sub_group_size: OrAuto[Natural] = key(
        1_000_000_000,
        "Parameters updated at a time at stage 3.",
        unit="elements",
        since="0.3.12",
        was={"0.4.1": 1_000_000_000_000},
        memory="temporary fp32 copies of one tile during the step",
        stages=(3,),
    )
    zenflow: ZenFlow | None = key(
        None, "Optimizer offload that does not wait for the CPU.", since="0.17.5"
    )
    save_muon_momentum_buffer_in_memory: bool = key(
        False, "Keeps Muon's momentum out of NVMe at stage 3.", since="0.18.9", stages=(3,)
    )

    # Stage 3: what is gathered, and for how long.
    stage3_prefetch_bucket_size: OrAuto[Natural] = key(
        50_000_000,
        "Parameters gathered ahead of their use.",
        unit="elements",
        since="0.3.12",
        spelled=("stage3_prefetch_bucket_size", "prefetch_bucket_size"),
        memory="up to that many gathered elements",
        stages=(3,),
    )
    stage3_param_persistence_threshold: OrAuto[Natural] = key(
        100_000,
        "Parameters smaller than this stay whole on every rank.",
        unit="elements",
        since="0.3.12",
        spelled=("stage3_param_persistence_threshold", "param_persistence_threshold"),
        memory="those parameters, whole, on every rank",
        stages=(3,),
    )
    stage3_model_persistence_threshold: Natural = key(
        9_223_372_036_854_775_807,
        "Most elements that stay whole in all.",
        unit="elements",
        since="0.7.0",
        spelled=("stage3_model_persistence_threshold", "model_persistence_threshold"),
        stages=(3,),
    )
    stage3_max_live_parameters: Natural = key(
        1_000_000_000,
        "Most gathered parameters at a time on one device.",
        unit="elements",
        since="0.3.12",
        spelled=("stage3_max_live_parameters", "max_live_parameters"),
        memory="up to that many gathered elements",
        stages=(3,),
    )
    stage3_max_reuse_distance: Natural = key(
        1_000_000_000,
        "A parameter needed again within so many elements stays gathered.",
        unit="elements",
        since="0.3.12",
        spelled=("stage3_max_reuse_distance", "max_reuse_distance"),
        stages=(3,),
    )
    stage3_module_granularity_threshold: Integer = key(
        0,
        "Modules with fewer parameters per submodule are gathered as one.",
        since="0.16.0",
        spelled=("stage3_module_granularity_threshold", "module_granularity_threshold"),
        stages=(3,),
    )
    stage3_use_all_reduce_for_fetch_params: bool = key(
        False,
        "Gathers by all-reduce rather than all-gather.",
        since="0.14.3",
        spelled=("stage3_use_all_reduce_for_fetch_params", "use_all_reduce_for_fetch_params"),
        stages=(3,),
    )
    stage3_allgather_sequential: bool = key(
        False,
        "Gathers one parameter at a time; prefetching is off.",
        since="0.18.5",
        spelled=("stage3_allgather_sequential", "allgather_sequential"),
        stages=(3,),
    )
    stage3_gather_16bit_weights_on_model_save: OrAuto[bool] = key(
        False,
        "Lets save_16bit_model gather whole weights at stage 3; without it nothing is saved.",
        since="0.6.0",
        spelled=(
            "stage3_gather_16bit_weights_on_model_save",
            "gather_16bit_weights_on_model_save",
        ),
        memory="2 bytes per weight in host memory of rank 0 while it saves",
        stages=(3,),
    )
    leaf_module: OrAbsent[LeafModule] = key(
        None, "Modules that stage 3 gathers as one.", since="0.18.0", takes_null=True, stages=(3,)
    )
    memory_efficient_linear: bool = key(
        True,
        "A linear layer that saves less for backward, under zero.Init.",
        since="0.9.0",
        stages=(3,),
    )
    override_module_apply: bool = key(
        True, "Makes Module.apply see whole weights.", since="0.10.1", stages=(3,)
    )
    log_trace_cache_warnings: bool = key(
        False, "Warns when the order of gathers is learnt anew.", since="0.16.4", stages=(3,)
    )
    enable_sanity_checks: bool = key(
        False, "Checks its own state as it goes.", since="0.17.6", stages=(3,)
    )

    # ZeRO++.
    zero_hpz_partition_size: Natural = key(
        1,
        "Ranks that hold a second copy of the parameters, one node as a rule; 1 is off.",
        since="0.10.0",
        memory="2 bytes per weight, divided by this many ranks",
        stages=(3,),
    )
    zero_quantized_weights: bool = key(
        False, "Gathers weights in 8 bits.", since="0.10.0", stages=(3,)
    )
    zero_quantized_nontrainable_weights: bool = key(
        False, "Keeps frozen weights in 8 bits.", since="0.10.2", stages=(3,)
    )
    zero_quantized_gradients: bool = key(
        False, "Reduces gradients in 4 bits; stage 3.", since="0.10.0", stages=(3,)
    )
    zeropp_loco_param: LoCo | None = key(
        None,
        "Error feedback for quantised gradients.",
        read_as=ReadAs.DICT,
        since="0.16.2",
        refused="0.19.8",
        instead="delete it; quantised gradients work without error feedback",
    )
    mics_shard_size: Integer = key(
        -1,
        "Ranks that share one copy of the model (MiCS); -1 is off.",
        since="0.9.2",
        refused="0.19.7",
        instead="delete it, or use zero_hpz_partition_size",
        in_engine=True,
    )
    mics_hierarchical_params_gather: bool = key(
        False,
        "Gathers within a node first (MiCS).",
        since="0.9.2",
        refused="0.19.7",
        instead="delete it, or use zero_hpz_partition_size",
    )

    # Checkpoints.
    load_from_fp32_weights: bool = key(
        True,
        "Takes master weights from the checkpoint, not the rounded 16-bit copy.",
        stages=(1, 2, 3),
    )
    pipeline_loading_checkpoint: bool = key(
        False, "Loads rank by rank to spare host memory; stage 3.", since="0.10.1", stages=(3,)
    )
    elastic_checkpoint: bool = key(
        False,
        "Saves states that another number of ranks can load; stages 1 and 2.",
        since="0.3.3",
        was={"0.5.10": True},
        replaced_by="checkpoint.load_universal",
        deprecated="0.15.0",
        instead='write "load_universal": true in checkpoint',
    )

    # Former names and switches.
    cpu_offload: bool | None = key(
        None,
        "Optimizer offload as a switch.",
        was={"0.7.0": False},
        replaced_by="zero_optimization.offload_optimizer",
        deprecated="0.3.15",
        instead='write "offload_optimizer": {"device": "cpu"}',
        stages=(1, 2, 3),
    )
    cpu_offload_param: bool | None = key(
        None,
        "Parameter offload as a switch.",
        since="0.7.0",
        replaced_by="zero_optimization.offload_param",
        deprecated="0.7.0",
        instead='write "offload_param": {"device": "cpu"}',
        stages=(3,),
    )
    cpu_offload_params: bool = key(
        False,
        "Parameter offload as a switch, in its first spelling.",
        since="0.3.12",
        until="0.6.7",
        replaced_by="zero_optimization.offload_param",
        renamed="0.7.0",
        instead='write "offload_param": {"device": "cpu"}',
    )
    cpu_offload_use_pin_memory: bool | None = key(
        None,
        "Page-locked memory as a switch; dropped without effect.",
        since="0.3.12",
        gap=("0.4.0", "0.6.7"),
        was={"0.7.0": False},
        replaced_by="zero_optimization.offload_optimizer.pin_memory",
        deprecated="0.4.0",
        instead='write "pin_memory" in offload_param or offload_optimizer',
    )
    stage3_gather_fp16_weights_on_model_save: bool = key(
        False,
        "Whole weights on save, in its first spelling.",
        since="0.3.14",
        replaced_by="zero_optimization.stage3_gather_16bit_weights_on_model_save",
        deprecated="0.6.0",
        instead='write "stage3_gather_16bit_weights_on_model_save"',
        stages=(3,),
    )
    find_unused_parameters: bool = key(
        True,
        "The opposite of ignore_unused_parameters.",
        since="0.3.16",
        until="0.3.16",
        replaced_by="zero_optimization.ignore_unused_parameters",
        renamed="0.4.0",
        instead='write "ignore_unused_parameters", which has the opposite meaning',
    )
    legacy_stage1: bool = key(False, "The first code of stage 1; true is refused.", since="0.4.0")
    grad_hooks: bool = key(True, "Documented, and read by no release.", status="docs_only")
