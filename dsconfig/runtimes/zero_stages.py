"""At which ZeRO stages DeepSpeed does something with a key of zero_optimization."""

from collections.abc import Mapping

SHARDED_STATES = (1, 2)
SHARDED_WEIGHTS = (3,)

_BELOW_3 = """
    allgather_bucket_size round_robin_gradients use_multi_rank_bucket_allreduce
    ignore_unused_parameters parameter_alignment
"""
_STAGE_3 = """
    offload_param sub_group_size prefetch_bucket_size param_persistence_threshold
    model_persistence_threshold max_live_parameters max_reuse_distance
    gather_16bit_weights_on_model_save stage3_gather_fp16_weights_on_model_save
    module_granularity_threshold use_all_reduce_for_fetch_params allgather_sequential
    zero_hpz_partition_size zero_quantized_weights zero_quantized_nontrainable_weights
    zero_quantized_gradients memory_efficient_linear override_module_apply
    pipeline_loading_checkpoint log_trace_cache_warnings enable_sanity_checks
    save_muon_momentum_buffer_in_memory leaf_module cpu_offload_param
"""
_ANY_STAGE = """
    reduce_bucket_size contiguous_gradients reduce_scatter overlap_comm offload_optimizer
    load_from_fp32_weights cpu_offload
"""

STAGES_OF: Mapping[str, tuple[int, ...]] = {
    **dict.fromkeys(_BELOW_3.split(), (1, 2)),
    **dict.fromkeys(_STAGE_3.split(), (3,)),
    **dict.fromkeys(_ANY_STAGE.split(), (1, 2, 3)),
}
"""By the short name of the key."""

STAGE_3_OFFLOAD = ("super_offload", "cpuadam_cores_perc", "fast_init")
"""Keys of offload_optimizer that only stage 3 reads, and that are not refused elsewhere."""
