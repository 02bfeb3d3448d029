"""DeepSpeed's modules, and where the names in them live.

``dsconfig.features`` has the names that live nowhere, and why.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import NamedTuple

PACKAGE = "dsengine"
NAMESPACE = f"{PACKAGE}.deepspeed"
ANY = "*"
"""In place of a name: the function that returns the value of any other name."""

MODULES: Mapping[str, Mapping[str, str]] = {
    "accelerator": {
        "deepspeed.accelerators": (
            "Accelerator Host get_accelerator is_current_accelerator_supported"
        ),
    },
    "checkpoint": {},
    "checkpoint.constants": {
        "deepspeed.key_names": (
            "AUTOEP_LAYERS_KEY AUTOEP_LAYERS_KEY_LEGACY AUTOEP_ZERO3_EXPERT_STATE_FORMAT_KEY "
            "AUTOEP_ZERO3_PARTITIONED_EXPERT_STATE_FORMAT BASE_OPTIMIZER_STATE "
            "BASE_OPTIMIZER_STATE_STEP BF16_ZERO_FILE_PREFIX BUFFER_NAMES "
            "CHECKPOINT_PARALLEL_DIMS CHECKPOINT_PP_DEGREE CHECKPOINT_TP_DEGREE CLIP_GRAD "
            "DS_VERSION FP16_ZERO_FILE_PREFIX FP32_FLAT_GROUPS FP32_GROUPS FP32_WEIGHT_KEY "
            "FROZEN_PARAM_FRAGMENTS FROZEN_PARAM_SHAPES GROUP_PADDINGS LAYER_FILE_PREFIX "
            "LOSS_SCALER MODEL_FILE_PREFIX MODEL_FILE_SUFFIX OPTIMIZER_STATE_DICT "
            "OPTIM_FILE_SUFFIX PARAM PARAM_ALIGNMENT_PADDINGS PARAM_GROUPS PARAM_SHAPES "
            "PARAM_SLICE_MAPPINGS PARTITION_COUNT SINGLE_PARTITION_OF_FP32_GROUPS "
            "UNIVERSAL_CHECKPOINT_INFO ZERO_FILE_PREFIX ZERO_STAGE"
        ),
    },
    "checkpoint.utils": {"deepspeed.weights": "clone_tensors_for_torch_save"},
    "comm": {
        "communication.devices": "get_backend",
        "communication.environment": "Placement discover local_rank_argument",
        "communication.start": "default_timeout init_distributed usable_backend",
        "deepspeed.parallel": (
            "get_all_ranks_from_group get_local_rank get_world_group has_all_gather_into_tensor"
        ),
        "torch.distributed": (
            "P2POp ProcessGroup ReduceOp all_gather all_gather_into_tensor all_gather_object "
            "all_reduce all_to_all all_to_all_single allgather_fn=all_gather_into_tensor barrier "
            "batch_isend_irecv broadcast broadcast_object_list destroy_process_group gather "
            "get_global_rank get_rank get_world_size inference_all_reduce=all_reduce irecv "
            "is_available is_initialized isend monitored_barrier new_group recv reduce "
            "reduce_scatter reduce_scatter_fn=reduce_scatter_tensor reduce_scatter_tensor scatter "
            "send"
        ),
    },
    "compression": {},
    "compression.helper": {"deepspeed.utilities": "recursive_getattr recursive_setattr"},
    "constants": {
        "communication.environment": "TORCH_DISTRIBUTED_DEFAULT_PORT=DEFAULT_PORT",
        "deepspeed.key_names": "CROSS_RANK CROSS_SIZE LOCAL_RANK default_pg_timeout",
    },
    "git_version_info": {
        "deepspeed.kernels": "compatible_ops git_branch git_hash installed_ops torch_info",
        "release": "version=VERSION",
    },
    "launcher": {},
    "launcher.launch": {"deepspeed.rank_command": "FLAGS command rank_environment"},
    "launcher.runner": {
        "deepspeed.launching": (
            "DEEPSPEED_ENVIRONMENT_NAME DLTS_HOSTFILE VISIBLE_DEVICES _parse_hostfile "
            "encode_world_info fetch_hostfile main parse_args parse_inclusion_exclusion "
            "parse_resource_filter"
        ),
    },
    "module_inject": {},
    "module_inject.layers": {"deepspeed.parallel": "GatherReplacedLayerParams"},
    "moe": {},
    "moe.utils": {
        "deepspeed.parallel": (
            "has_moe_layers is_moe_param split_params_into_different_moe_groups_for_optimizer"
        ),
    },
    "monitor": {},
    "monitor.comet": {"deepspeed.monitors": "CometMonitor"},
    "monitor.config": {
        "deepspeed.config": (
            "CSVConfig CometConfig DeepSpeedMonitorConfig TensorBoardConfig WandbConfig "
            "get_monitor_config"
        ),
    },
    "monitor.csv_monitor": {"deepspeed.monitors": "csvMonitor"},
    "monitor.monitor": {"deepspeed.monitors": "Monitor MonitorMaster"},
    "monitor.tensorboard": {"deepspeed.monitors": "TensorBoardMonitor"},
    "monitor.wandb": {"deepspeed.monitors": "WandbMonitor"},
    "ops": {"deepspeed.kernels": "__compatible_ops__=compatible_ops"},
    "ops.adagrad": {"deepspeed.optimizers": "DeepSpeedCPUAdagrad"},
    "ops.adam": {
        "deepspeed.optimizers": (
            "Betas ConfigurableZeroGrad DeepSpeedCPUAdam DeepSpeedClass FusedAdam"
        ),
    },
    "ops.aio": {"deepspeed.kernels": "AsyncIOBuilder"},
    "ops.lion": {"deepspeed.optimizers": "DeepSpeedCPULion FusedLion"},
    "ops.op_builder": {
        "deepspeed.kernels": (
            "ALL_OPS AsyncIOBuilder CPUAdagradBuilder CPUAdamBuilder CPULionBuilder "
            "EvoformerAttnBuilder FPQuantizerBuilder FusedAdamBuilder FusedLambBuilder "
            "FusedLionBuilder GDSBuilder InferenceBuilder OpBuilder QuantizerBuilder "
            "RandomLTDBuilder TransformerBuilder UtilsBuilder"
        ),
    },
    "profiling": {},
    "profiling.flops_profiler": {"deepspeed.observing": "get_model_profile"},
    "runtime": {},
    "runtime.activation_checkpointing": {},
    "runtime.activation_checkpointing.checkpointing": {
        "loop.activation_checkpointing": (
            "checkpoint configure every_other_product is_configured non_reentrant_checkpoint reset"
        ),
    },
    "runtime.base_optimizer": {
        "deepspeed.optimizers": "StageClass ZeROOptimizer",
        "torch.optim": "DeepSpeedOptimizer=Optimizer",
    },
    "runtime.config": {
        "deepspeed.config": (
            "BATCH DeepSpeedConfig get_gradient_accumulation_steps get_gradient_clipping "
            "get_log_level get_steps_per_print get_train_batch_size "
            "get_train_micro_batch_size_per_gpu *=optimizer_type"
        ),
        "loop.planning": "DeepSpeedConfigError",
    },
    "runtime.config_utils": {
        "deepspeed.config": (
            "DeepSpeedConfigModel dict_raise_error_on_duplicate_keys get_scalar_param"
        ),
    },
    "runtime.constants": {"deepspeed.key_names": "*=key_or_default"},
    "runtime.dataloader": {"loop.data": "RepeatingLoader"},
    "runtime.engine": {"loop.engine": "DeepSpeedEngine=Engine"},
    "runtime.fp16": {},
    "runtime.fp16.fused_optimizer": {"deepspeed.optimizers": "FP16_Optimizer HalfPrecisionClass"},
    "runtime.fp16.loss_scaler": {
        "deepspeed.optimizers": "DynamicLossScaler LossScaler LossScalerBase",
    },
    "runtime.fp16.unfused_optimizer": {"deepspeed.optimizers": "FP16_UnfusedOptimizer"},
    "runtime.lr_schedules": {
        "deepspeed.arguments": (
            "COS_MIN_RATIO CYCLE_FIRST_STAIR_COUNT CYCLE_FIRST_STEP_SIZE CYCLE_MAX_LR "
            "CYCLE_MAX_MOM CYCLE_MIN_LR CYCLE_MIN_MOM CYCLE_SECOND_STAIR_COUNT "
            "CYCLE_SECOND_STEP_SIZE DECAY_LR_RATE DECAY_MOM_RATE DECAY_STEP_SIZE LR_RANGE_TEST "
            "LR_RANGE_TEST_MIN_LR LR_RANGE_TEST_STAIRCASE LR_RANGE_TEST_STEP_RATE "
            "LR_RANGE_TEST_STEP_SIZE ONE_CYCLE TOTAL_NUM_STEPS WARMUP_COSINE_LR WARMUP_DECAY_LR "
            "WARMUP_LINEAR_RATE WARMUP_LOG_RATE WARMUP_LR WARMUP_MAX_LR WARMUP_MIN_LR "
            "WARMUP_MIN_RATIO WARMUP_NUM_STEPS WARMUP_TYPE add_tuning_arguments"
        ),
        "optimizers.schedules": (
            "LRRangeTest OneCycle VALID_LR_SCHEDULES WarmupCosineLR WarmupDecayLR WarmupLR"
        ),
    },
    "pipe": {
        "parallel.pipeline.layers": "LayerSpec TiedLayerSpec",
        "parallel.pipeline.module": "PipelineModule",
    },
    "runtime.pipe": {
        "parallel.pipeline.layers": "LayerSpec TiedLayerSpec",
        "parallel.pipeline.module": "PipelineModule",
        "parallel.pipeline.process_topology": "ProcessTopology",
    },
    "runtime.pipe.engine": {
        "deepspeed.pipelines": "PipelineEngine",
    },
    "runtime.pipe.module": {
        "parallel.pipeline.layers": "LayerSpec TiedLayerSpec",
        "parallel.pipeline.module": "PipelineError PipelineModule",
        "parallel.pipeline.process_topology": "PipeDataParallelTopology",
        "parallel.pipeline.grid": "PipelineParallelGrid",
    },
    "runtime.pipe.topology": {
        "parallel.pipeline.process_topology": (
            "PipeDataParallelTopology PipeModelDataParallelTopology ProcessTopology"
        ),
        "parallel.pipeline.grid": "PipelineParallelGrid",
    },
    "runtime.precision_config": {
        "deepspeed.config": "DeepSpeedBF16Config DeepSpeedFP16Config get_bfloat16_config",
    },
    "runtime.sequence_parallel": {},
    "runtime.sequence_parallel.parallel_state_sp": {
        "deepspeed.parallel": (
            "get_model_parallel_group=_get_sequence_parallel_group "
            "get_model_parallel_rank=_get_sequence_parallel_rank "
            "get_model_parallel_world_size=_get_sequence_parallel_world_size "
            "get_sequence_data_parallel_group=_get_sequence_data_parallel_group "
            "get_sequence_data_parallel_rank=_get_sequence_data_parallel_rank "
            "get_sequence_data_parallel_world_size=_get_sequence_data_parallel_world_size "
            "get_sequence_parallel_group=_get_sequence_parallel_group "
            "get_sequence_parallel_rank=_get_sequence_parallel_rank "
            "get_sequence_parallel_world_size=_get_sequence_parallel_world_size "
            "initialize_sequence_parallel"
        ),
    },
    "runtime.sequence_parallel.ulysses_sp": {
        "deepspeed.parallel": "UlyssesSPAttentionHF",
        "parallel.loader": "UlyssesSPDataLoaderAdapter=SequenceLoader",
        "parallel.tiling": "TiledFusedLogitsLoss TiledMLP sequence_tiled_compute",
    },
    "runtime.utils": {
        "deepspeed.utilities": "clip_grad_norm_ move_to_device see_memory_usage",
        "parallel.pipeline.layers": "set_random_seed",
        "parallel.pipeline.partition": "partition_balanced partition_uniform prefix_sum_inc",
    },
    "runtime.zero": {
        "deepspeed.sharded_parameters": "TiledLinear unwrap_model_for_generation",
        "sharding.zero.external": "register_external_parameter unregister_external_parameter",
        "sharding.zero.gathered": "GatheredParameters",
        "sharding.zero.init": "Init",
        "sharding.zero.status": "ZeroParamStatus",
        "tiers.offloaded_states": "OffloadDeviceEnum OffloadStateTypeEnum",
    },
    "runtime.zero.config": {
        "deepspeed.config": (
            "ConfigBlock DeepSpeedZeroConfig DeepSpeedZeroLeafModuleConfig "
            "DeepSpeedZeroOffloadOptimizerConfig DeepSpeedZeroOffloadParamConfig ZeroStageEnum"
        ),
    },
    "runtime.zero.generation": {"deepspeed.sharded_parameters": "unwrap_model_for_generation"},
    "runtime.zero.leaf_module_config": {
        "deepspeed.config": (
            "DEFAULT_LEAF_MODULE_CLASSES DEFAULT_LEAF_MODULE_NAMES "
            "DEFAULT_LEAF_MODULE_NAME_SUFFIXES DeepSpeedZeroLeafModuleConfig"
        ),
    },
    "runtime.zero.linear": {"torch.nn.functional": "zero3_linear_wrap=linear"},
    "runtime.zero.offload_config": {
        "deepspeed.config": "DeepSpeedZeroOffloadOptimizerConfig DeepSpeedZeroOffloadParamConfig",
        "tiers.offloaded_states": "OffloadDeviceEnum OffloadStateTypeEnum",
    },
    "runtime.zero.partition_parameters": {
        "deepspeed.accelerators": "get_accelerator",
        "deepspeed.sharded_parameters": "_orig_torch_arange zero_wrapper_for_fp_tensor_constructor",
        "sharding.zero.external": "register_external_parameter unregister_external_parameter",
        "sharding.zero.gathered": "GatheredParameters",
        "sharding.zero.init": "Init",
        "sharding.zero.parameter_attributes": "ZeroParamType",
        "sharding.zero.status": "ZeroParamStatus",
    },
    "runtime.zero.stage3": {
        "deepspeed.estimates": (
            "DeepSpeedZeroOptimizer_Stage3 estimate_zero3_model_states_mem_needs "
            "estimate_zero3_model_states_mem_needs_all_cold "
            "estimate_zero3_model_states_mem_needs_all_live"
        ),
    },
    "runtime.zero.stage_1_and_2": {
        "deepspeed.estimates": (
            "DeepSpeedZeroOptimizer estimate_zero2_model_states_mem_needs "
            "estimate_zero2_model_states_mem_needs_all_cold "
            "estimate_zero2_model_states_mem_needs_all_live"
        ),
    },
    "runtime.zero.tiling": {"deepspeed.sharded_parameters": "TiledLinear"},
    "sequence": {},
    "sequence.layer": {"parallel.distributed_attention": "DistributedAttention"},
    "utils": {
        "deepspeed.observing": "log_dist logger print_dist set_log_level_from_string warning_once",
        "deepspeed.sharded_parameters": (
            "get_z3_leaf_modules set_z3_leaf_module set_z3_leaf_modules "
            "set_z3_leaf_modules_by_name set_z3_leaf_modules_by_suffix unset_z3_leaf_modules "
            "z3_leaf_module"
        ),
        "deepspeed.tensor_fragment": (
            "safe_get_full_fp32_param safe_get_full_grad safe_get_full_optimizer_state "
            "safe_get_local_fp32_param safe_get_local_grad safe_get_local_optimizer_state "
            "safe_set_full_fp32_param safe_set_full_grad safe_set_full_optimizer_state "
            "safe_set_local_fp32_param safe_set_local_grad safe_set_local_optimizer_state "
            "safe_update_full_grad_vectorized"
        ),
        "deepspeed.utilities": "OnDevice recursive_getattr recursive_setattr",
        "loop.data": "RepeatingLoader",
        "torch.distributed": "is_initialized",
    },
    "utils.groups": {
        "deepspeed.parallel": (
            "_get_data_parallel_group _get_data_parallel_rank _get_data_parallel_world_size "
            "_get_model_parallel_world_size _get_sequence_data_parallel_group "
            "_get_sequence_data_parallel_rank _get_sequence_data_parallel_world_size "
            "_get_sequence_parallel_group _get_sequence_parallel_rank "
            "_get_sequence_parallel_world_size get_data_parallel_group get_data_parallel_rank "
            "get_data_parallel_world_size get_model_parallel_rank get_model_parallel_world_size "
            "get_tensor_model_parallel_rank get_tensor_model_parallel_world_size initialize"
        ),
    },
    "utils.init_on_device": {"deepspeed.utilities": "OnDevice"},
    "utils.logging": {
        "deepspeed.observing": "log_dist logger print_dist set_log_level_from_string warning_once",
    },
    "utils.module_utils": {"deepspeed.utilities": "recursive_getattr recursive_setattr"},
    "utils.tensor_fragment": {
        "deepspeed.tensor_fragment": (
            "fragment_address safe_get_full_fp32_param safe_get_full_grad "
            "safe_get_full_optimizer_state safe_get_local_fp32_param safe_get_local_grad "
            "safe_get_local_optimizer_state safe_set_full_fp32_param safe_set_full_grad "
            "safe_set_full_optimizer_state safe_set_local_fp32_param safe_set_local_grad "
            "safe_set_local_optimizer_state safe_update_full_grad_vectorized"
        ),
    },
    "utils.timer": {"deepspeed.observing": "SynchronizedWallClockTimer trim_mean"},
    "utils.torch": {"deepspeed.utilities": "required_torch_version"},
    "utils.z3_leaf_module": {
        "deepspeed.sharded_parameters": (
            "get_z3_leaf_modules set_z3_leaf_module set_z3_leaf_modules "
            "set_z3_leaf_modules_by_name set_z3_leaf_modules_by_suffix unset_z3_leaf_modules "
            "z3_leaf_module"
        ),
    },
    "utils.zero_to_fp32": {
        "deepspeed.weights": (
            "convert_zero_checkpoint_to_fp32_state_dict "
            "convert_zero_checkpoint_to_state_dict get_checkpoint_files "
            "get_fp32_state_dict_from_zero_checkpoint get_model_state_file get_model_state_files "
            "get_optim_files load_state_dict_from_zero_checkpoint main"
        ),
    },
    "utils.zero_to_torch": {"deepspeed.weights": "convert_zero_checkpoint_to_state_dict main"},
}
"""By path below ``deepspeed``, by module of torch or below ``dsengine``, the names; ``a=b`` is
``import b as a``. Submodules are names of their package anyway."""
_ELSEWHERE = {"schedules": f"{PACKAGE}.optimizers.schedules"}
"""Modules that are one of dsengine's."""
_SAME_AS = {
    "accelerator.abstract_accelerator": "accelerator",
    "accelerator.cpu_accelerator": "accelerator",
    "accelerator.cuda_accelerator": "accelerator",
    "accelerator.real_accelerator": "accelerator",
    "checkpointing": "runtime.activation_checkpointing.checkpointing",
    "comm.comm": "comm",
    "dist": "comm",
    "git_version_info_installed": "git_version_info",
    "ops.adagrad.cpu_adagrad": "ops.adagrad",
    "ops.adam.cpu_adam": "ops.adam",
    "ops.adam.fused_adam": "ops.adam",
    "ops.lion.cpu_lion": "ops.lion",
    "ops.lion.fused_lion": "ops.lion",
    "ops.op_builder.all_ops": "ops.op_builder",
    "profiling.flops_profiler.profiler": "profiling.flops_profiler",
    "zero": "runtime.zero",
}
"""Modules of DeepSpeed, with that which is the same object here."""


class Place(NamedTuple):
    """Where a name lives: an attribute of a module."""

    module: str
    attribute: str


@cache
def places(path: str) -> Mapping[str, Place]:
    """Return where each name of module ``deepspeed.<path>`` lives."""
    return dict(_places(path))


def _places(path: str) -> Iterator[tuple[str, Place]]:
    for module, names in MODULES[path].items():
        full = module if module.startswith("torch") else f"{PACKAGE}.{module}"
        for entry in names.split():
            name, _, attribute = entry.partition("=")
            yield name, Place(full, attribute or name)


def public_names(path: str) -> list[str]:
    """Return the public names of module ``deepspeed.<path>``, and those of modules in it."""
    below = (name.removeprefix(f"{path}.") for name in MODULES if name.startswith(f"{path}."))
    modules = (name for name in below if "." not in name)
    named = (name for name in places(path) if name != ANY)
    return [name for name in dict.fromkeys((*named, *modules)) if name[0] != "_"]


def module_of(name: str) -> str | None:
    """Return the module that is ``deepspeed.<name>``, or None."""
    name = canonical(name)
    return _ELSEWHERE.get(name) or (f"{NAMESPACE}.{name}" if name in MODULES else None)


def canonical(name: str) -> str:
    """Return the path under which ``MODULES`` has ``deepspeed.<name>``, or what is in it."""
    for alias, same in _SAME_AS.items():
        if name == alias or name.startswith(f"{alias}."):
            return same + name.removeprefix(alias)
    return name
