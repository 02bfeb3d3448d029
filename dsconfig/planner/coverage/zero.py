"""Coverage of zero_optimization, its offload blocks, and aio."""

from dsconfig.features.table import FEATURES
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

_UNSHARDED = "parameters are not sharded below stage 3"
_STAGE_3 = stages(3)


def _stage_3(by: str) -> Rule:
    return honoured(by, _STAGE_3) + inert(_UNSHARDED)


_REPLICATED = inert("nothing is sharded at stage 0")
_BLOCK = {
    "stage": honoured(
        "0: replicas; 1, 2: sharded optimizer states and gradients; 3: parameters too"
    ),
    "reduce_bucket_size": honoured(
        "size limit of sharding units outside the repeated blocks", SHARDED
    )
    + _REPLICATED,
    "allgather_bucket_size": inert("each unit is all-gathered in one call"),
    "overlap_comm": inert("nothing is sharded at stage 0", stages(0))
    + inert("communication always overlaps with computation, without extra buffers"),
    "contiguous_gradients": inert("gradients of a unit are always in one buffer"),
    "reduce_scatter": inert("gradients are always reduce-scattered; same result"),
    "use_multi_rank_bucket_allreduce": inert("gradients are always reduce-scattered"),
    "allgather_partitions": inert("updated parameters are always all-gathered per unit"),
    "round_robin_gradients": inert("each tensor is sharded by rows, which is balanced"),
    "compute_grad_norm": honoured("false: the gradient norm is not computed"),
    "load_from_fp32_weights": inert("checkpoints contain fp32 master weights, which are loaded"),
    "elastic_checkpoint": inert("all checkpoints load at any world size"),
    "ignore_unused_parameters": honoured("false: a parameter without a gradient is an error"),
    "legacy_stage1": off_or_refused("removed from DeepSpeed; remove the key"),
    "parameter_alignment": inert("the allocator aligns tensors"),
    "sub_group_size": honoured(
        "elements that the offloaded optimizer updates at a time, limited by the 256 MiB "
        "staging buffer",
        OPTIMIZER_OFFLOADED,
    )
    + inert("without offload all shards are updated in one call"),
    "stage3_prefetch_bucket_size": _stage_3("elements to prefetch"),
    "stage3_param_persistence_threshold": _stage_3(
        "units with only smaller parameters stay gathered"
    ),
    "stage3_model_persistence_threshold": _stage_3("maximum number of elements that stay gathered"),
    "stage3_max_live_parameters": _stage_3("limits prefetching and the size of units"),
    "stage3_max_reuse_distance": _stage_3(
        "units reused within this many elements stay gathered after forward"
    ),
    "stage3_gather_16bit_weights_on_model_save": _stage_3(
        "save_16bit_model and the consolidated state dict gather full weights"
    ),
    "stage3_gather_fp16_weights_on_model_save": _stage_3(
        "old name of stage3_gather_16bit_weights_on_model_save"
    ),
    "stage3_module_granularity_threshold": inert("blocks are always gathered as one unit"),
    "stage3_use_all_reduce_for_fetch_params": inert("parameters are all-gathered", OFF)
    + inert("parameters are all-gathered; same result"),
    "stage3_allgather_sequential": inert("each unit is gathered in one call", OFF)
    + inert("each unit is gathered in one call anyway"),
    "memory_efficient_linear": inert("torch's own linear is used"),
    "pipeline_loading_checkpoint": inert("each rank reads only its own shards"),
    "override_module_apply": inert("Module.apply operates on local shards"),
    "log_trace_cache_warnings": inert("the plan fixes the schedule; there is no trace"),
    "enable_sanity_checks": _stage_3(
        "writes in GatheredParameters that would be lost are an error"
    ),
    "save_muon_momentum_buffer_in_memory": inert("option of DeepSpeed's Muon"),
    "zero_hpz_partition_size": inert("off", equals(1))
    + honoured("all-gathers in backward stay within groups of this many ranks", _STAGE_3)
    + inert(_UNSHARDED),
    "mics_shard_size": inert("off", equals(-1))
    + honoured("2-D mesh: sharded within groups, replicated across them", SHARDED)
    + _REPLICATED,
    "mics_hierarchical_params_gather": inert("off", OFF)
    + inert("all-gathers stay within the shard group anyway"),
    "zero_quantized_weights": inert("off", OFF)
    + _stage_3("weights are gathered as 8-bit integers with a scale per block"),
    "zero_quantized_nontrainable_weights": inert("off", OFF)
    + _stage_3("frozen weights are gathered as 8-bit integers; shards keep the compute dtype"),
    "zero_quantized_gradients": inert("off", OFF)
    + _stage_3("gradients are sent as 4-bit integers with a scale per block, and summed in fp32"),
    "zenflow": inert("off", NULL) + refused(FEATURES["zenflow"]),
    "leaf_module": inert("off", NULL)
    + honoured("unused parameters in them get zero gradients", SHARDED)
    + inert("stage 0 skips parameters that no rank used"),
}


_ON_HOST = "used only with NVMe offload"
_PAGE_CACHE = "NVMe shards are memory-mapped files, buffered by the page cache"


def _on_nvme(by: str, where: Condition) -> Rule:
    return honoured(by, where) + inert(_ON_HOST)


def _of_tiles(by: str) -> Rule:
    return honoured(by, OPTIMIZER_ON_NVME) + inert("used only with optimizer offload to NVMe")


_TIERS = {
    f"{OFFLOAD_OPTIMIZER}.device": inert("optimizer states stay on the GPU", equals("none"))
    + honoured(
        "optimizer states and step on this device; gradients are reduced and offloaded in each "
        "micro step, also at stage 1",
        SHARDED,
    )
    + inert("no offload at stage 0"),
    f"{OFFLOAD_OPTIMIZER}.nvme_path": _on_nvme("one anonymous file per rank", OPTIMIZER_ON_NVME),
    f"{OFFLOAD_OPTIMIZER}.buffer_count": _on_nvme(
        "tensors staged at a time, at least two tiles", OPTIMIZER_ON_NVME
    ),
    f"{OFFLOAD_OPTIMIZER}.pin_memory": honoured("pinned host memory", OPTIMIZER_OFFLOADED)
    + inert("no offload"),
    f"{OFFLOAD_OPTIMIZER}.pipeline_read": inert("the next tile is always prefetched"),
    f"{OFFLOAD_OPTIMIZER}.pipeline_write": inert("tiles are always written asynchronously"),
    f"{OFFLOAD_OPTIMIZER}.fast_init": inert("states are created in place"),
    f"{OFFLOAD_OPTIMIZER}.ratio": inert("all states are offloaded", equals(1.0))
    + honoured("fraction of elements updated on the host", OPTIMIZER_OFFLOADED)
    + inert("no offload"),
    f"{OFFLOAD_OPTIMIZER}.super_offload": off_or_refused(FEATURES["super_offload"]),
    f"{OFFLOAD_OPTIMIZER}.cpuadam_cores_perc": inert("read only by SuperOffload"),
    f"{OFFLOAD_PARAM}.device": inert("parameters stay on the GPU", equals("none"))
    + honoured("parameter shards are stored on this device", _STAGE_3)
    + inert("parameter offload requires stage 3"),
    f"{OFFLOAD_PARAM}.nvme_path": _on_nvme(
        "one memory-mapped file per rank and tensor", PARAMETERS_ON_NVME
    ),
    f"{OFFLOAD_PARAM}.buffer_count": inert(_PAGE_CACHE),
    f"{OFFLOAD_PARAM}.buffer_size": inert(_PAGE_CACHE),
    f"{OFFLOAD_PARAM}.max_in_cpu": _on_nvme("elements kept in host memory", PARAMETERS_ON_NVME),
    f"{OFFLOAD_PARAM}.pin_memory": honoured("pinned host memory", PARAMETERS_OFFLOADED)
    + inert("no offload"),
    "aio.block_size": _of_tiles("bytes per read or write"),
    "aio.queue_depth": _of_tiles("requests in flight per thread"),
    "aio.intra_op_parallelism": _of_tiles("threads; requests in flight are queue_depth times this"),
    "aio.thread_count": inert("renamed in DeepSpeed 0.16.4 to aio.intra_op_parallelism"),
    **dict.fromkeys(
        ("aio.single_submit", "aio.overlap_events"), inert("option of libaio, not used")
    ),
    "aio.use_gds": off_or_refused(FEATURES["gpudirect_storage"]),
}

_DEPRECATED_PIN = "DeepSpeed ignores it; set pin_memory in the offload block"
RULES = (
    _TIERS
    | {f"zero_optimization.{name}": rule for name, rule in _BLOCK.items()}
    | {
        "zero_optimization": honoured("true: stage 1, as in DeepSpeed's old form"),
        "zero_optimization.cpu_offload": inert("off", OFF)
        + honoured("old form of offload_optimizer.device = cpu", SHARDED)
        + inert("no offload at stage 0"),
        "zero_optimization.cpu_offload_param": inert("off", OFF)
        + honoured("old form of offload_param.device = cpu", _STAGE_3)
        + inert("parameter offload requires stage 3"),
        "zero_optimization.cpu_offload_use_pin_memory": inert(_DEPRECATED_PIN),
        "zero_optimization.grad_hooks": inert("declared but not read by DeepSpeed"),
    }
)
