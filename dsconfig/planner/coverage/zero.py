"""The zero_optimization block with its offload blocks, and aio."""

from dsconfig.planner.coverage.rules import (
    NULL,
    OFF,
    OPTIMIZER_OFFLOADED,
    OPTIMIZER_ON_NVME,
    PARAMETERS_OFFLOADED,
    PARAMETERS_ON_NVME,
    SHARDED,
    Condition,
    Rule,
    equals,
    honoured,
    inert,
    off_or_refused,
    refused,
    stages,
)
from dsconfig.schema.paths import OFFLOAD_OPTIMIZER, OFFLOAD_PARAM

_WHOLE = "below stage 3 parameters are whole at rest: nothing is gathered around use"
_STAGE_3 = stages(3)


def _stage_3(by: str) -> Rule:
    return honoured(by, _STAGE_3) + inert(_WHOLE)


_REPLICATED = inert("at stage 0 every rank holds everything")
_BLOCK = {
    "stage": honoured("0: replicas; 1 and 2: sharded states, parameters whole; 3: all sharded"),
    "reduce_bucket_size": honoured("the cap of sharding units outside the repeated blocks", SHARDED)
    + _REPLICATED,
    "allgather_bucket_size": inert(
        "a unit's all-gather is one call; it allocates nothing in DeepSpeed either"
    ),
    "overlap_comm": inert("at stage 0 every rank holds everything", stages(0))
    + inert("communication always overlaps with compute, without buffers of its own"),
    "contiguous_gradients": inert("a unit's gradients are always reduced from one buffer"),
    "reduce_scatter": inert("gradients are always reduce-scattered, the result is the same"),
    "use_multi_rank_bucket_allreduce": inert("gradients are always reduce-scattered"),
    "allgather_partitions": inert("updated parameters are always all-gathered by unit"),
    "round_robin_gradients": inert("ownership is by rows of each tensor, balanced already"),
    "compute_grad_norm": honoured("false: no norm is computed, none can be read"),
    "load_from_fp32_weights": inert("checkpoints hold the fp32 master, loads use it"),
    "elastic_checkpoint": inert("every checkpoint loads at any number of ranks"),
    "ignore_unused_parameters": honoured("false: a parameter without gradient is an error"),
    "legacy_stage1": off_or_refused("removed from DeepSpeed; remove the key"),
    "parameter_alignment": inert("allocations are aligned by the allocator"),
    "sub_group_size": honoured(
        "the most elements that the offloaded optimizer updates at a time; never more than a "
        "staging buffer of 256 MiB holds",
        OPTIMIZER_OFFLOADED,
    )
    + inert("without offload the optimizer updates all shards in one call"),
    "stage3_prefetch_bucket_size": _stage_3("elements gathered ahead of their use"),
    "stage3_param_persistence_threshold": _stage_3(
        "units made of smaller parameters stay gathered"
    ),
    "stage3_model_persistence_threshold": _stage_3("the most elements that stay gathered so"),
    "stage3_max_live_parameters": _stage_3("bounds prefetching and the size of units"),
    "stage3_max_reuse_distance": _stage_3(
        "units used again within this many elements stay gathered after forward"
    ),
    "stage3_gather_16bit_weights_on_model_save": _stage_3(
        "save_16bit_model and the consolidated state dict gather whole weights"
    ),
    "stage3_gather_fp16_weights_on_model_save": _stage_3(
        "the old name of stage3_gather_16bit_weights_on_model_save"
    ),
    "stage3_module_granularity_threshold": inert(
        "blocks are gathered whole, which is what the threshold asks for"
    ),
    "stage3_use_all_reduce_for_fetch_params": inert("gathering is one all-gather", OFF)
    + inert("the result is the same as an all-gather"),
    "stage3_allgather_sequential": inert("a unit's gather is one call", OFF)
    + inert("a unit's gather is one call already"),
    "memory_efficient_linear": inert("torch's own linear is used"),
    "pipeline_loading_checkpoint": inert("each rank reads only its own shards"),
    "override_module_apply": inert("module.apply works on what each rank holds"),
    "log_trace_cache_warnings": inert("the schedule is fixed by the plan; there is no trace"),
    "enable_sanity_checks": _stage_3(
        "writes in GatheredParameters that would be discarded are an error"
    ),
    "save_muon_momentum_buffer_in_memory": inert("a switch of DeepSpeed's own Muon"),
    "zero_hpz_partition_size": inert("off", equals(1))
    + honoured("backward gathers stay inside groups of this many ranks", _STAGE_3)
    + inert(_WHOLE),
    "mics_shard_size": inert("off", equals(-1))
    + honoured("a two-dimensional mesh: shards within the group, replicas across", SHARDED)
    + _REPLICATED,
    "mics_hierarchical_params_gather": inert("off", OFF)
    + inert("gathers stay inside the shard group, which is what it is for"),
    "zero_quantized_weights": off_or_refused("quantised gathering is not built; remove the key"),
    "zero_quantized_nontrainable_weights": off_or_refused(
        "quantised storage is not built; remove the key"
    ),
    "zero_quantized_gradients": off_or_refused("quantised reduction is not built; remove the key"),
    "zenflow": inert("off", NULL) + refused("ZenFlow is not built; remove the block"),
    "leaf_module": inert("off", NULL)
    + honoured("parameters in them that a rank has not used are reduced as zeros", SHARDED)
    + inert("at stage 0 parameters that no rank has used are left alone"),
}


_ON_HOST = "states stay in memory; only the NVMe tier uses it"
_PAGE_CACHE = "shards on NVMe are mapped files; the kernel's page cache stages them"


def _on_nvme(by: str, where: Condition) -> Rule:
    return honoured(by, where) + inert(_ON_HOST)


def _of_tiles(by: str) -> Rule:
    return honoured(by, OPTIMIZER_ON_NVME) + inert("only an optimizer on NVMe is moved so")


_TIERS = {
    f"{OFFLOAD_OPTIMIZER}.device": inert("the optimizer stays on the device", equals("none"))
    + honoured(
        "master, moments and update on this tier; gradients leave while backward runs, reduced in "
        "every pass also at stage 1",
        SHARDED,
    )
    + inert("at stage 0 nothing is offloaded"),
    f"{OFFLOAD_OPTIMIZER}.nvme_path": _on_nvme(
        "one file per rank, without a name", OPTIMIZER_ON_NVME
    ),
    f"{OFFLOAD_OPTIMIZER}.buffer_count": _on_nvme(
        "tensors that are staged at a time, two tiles at least", OPTIMIZER_ON_NVME
    ),
    f"{OFFLOAD_OPTIMIZER}.pin_memory": honoured("page-locked host memory", OPTIMIZER_OFFLOADED)
    + inert("nothing is offloaded"),
    f"{OFFLOAD_OPTIMIZER}.pipeline_read": inert("the next tile is always read ahead"),
    f"{OFFLOAD_OPTIMIZER}.pipeline_write": inert("the last tile is always written behind"),
    f"{OFFLOAD_OPTIMIZER}.fast_init": inert(
        "states are created in place; there is nothing to speed up"
    ),
    f"{OFFLOAD_OPTIMIZER}.ratio": inert("everything is offloaded", equals(1.0))
    + honoured("this share of the elements is updated on the host", OPTIMIZER_OFFLOADED)
    + inert("nothing is offloaded"),
    f"{OFFLOAD_OPTIMIZER}.super_offload": off_or_refused(
        "SuperOffload is not built; remove the key"
    ),
    f"{OFFLOAD_OPTIMIZER}.cpuadam_cores_perc": inert("only SuperOffload's worker reads it"),
    f"{OFFLOAD_PARAM}.device": inert("parameters stay on the device", equals("none"))
    + honoured("parameter shards rest on this tier", _STAGE_3)
    + inert("parameters are offloaded only at stage 3"),
    f"{OFFLOAD_PARAM}.nvme_path": _on_nvme("a mapped file per rank and tensor", PARAMETERS_ON_NVME),
    f"{OFFLOAD_PARAM}.buffer_count": inert(_PAGE_CACHE),
    f"{OFFLOAD_PARAM}.buffer_size": inert(_PAGE_CACHE),
    f"{OFFLOAD_PARAM}.max_in_cpu": _on_nvme("elements kept in host memory", PARAMETERS_ON_NVME),
    f"{OFFLOAD_PARAM}.pin_memory": honoured("page-locked host memory", PARAMETERS_OFFLOADED)
    + inert("nothing is offloaded"),
    "aio.block_size": _of_tiles("bytes of one read or write"),
    "aio.queue_depth": _of_tiles("reads and writes in flight of each thread"),
    "aio.intra_op_parallelism": _of_tiles("times queue_depth: reads and writes in flight in all"),
    "aio.thread_count": inert("renamed in DeepSpeed 0.16.4; write aio.intra_op_parallelism"),
    "aio.single_submit": inert("a switch of libaio, which is not used"),
    "aio.overlap_events": inert("a switch of libaio, which is not used"),
    "aio.use_gds": off_or_refused("GPUDirect Storage is not built; remove the key"),
}

_DEPRECATED_PIN = "DeepSpeed drops it; write pin_memory in the offload block"
RULES = (
    _TIERS
    | {f"zero_optimization.{name}": rule for name, rule in _BLOCK.items()}
    | {
        "zero_optimization": honoured("true: stage 1, as DeepSpeed reads the old form"),
        "zero_optimization.cpu_offload": inert("off", OFF)
        + honoured("the old name of offload_optimizer.device = cpu", SHARDED)
        + inert("at stage 0 nothing is offloaded"),
        "zero_optimization.cpu_offload_param": inert("off", OFF)
        + honoured("the old name of offload_param.device = cpu", _STAGE_3)
        + inert("parameters are offloaded only at stage 3"),
        "zero_optimization.cpu_offload_use_pin_memory": inert(_DEPRECATED_PIN),
        "zero_optimization.grad_hooks": inert("declared in DeepSpeed, read by nobody"),
    }
)
