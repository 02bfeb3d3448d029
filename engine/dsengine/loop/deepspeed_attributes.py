"""Attributes of DeepSpeed's engine that the engine itself does not need.

Getters of config values are answered from one table, by key. What has no counterpart raises an
AttributeError that states the alternative, when it is read (unless the model has the attribute) and
when it is set: a script that sets ``enable_backward_allreduce`` would otherwise train differently
without notice.
"""

import gc
import os
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import IterableDataset

import dsconfig
from dsengine.communication.devices import get_backend
from dsengine.optimizers.precision import DTYPES
from dsengine.topology import Topology

_ZERO = "zero_optimization"
GETTERS: Mapping[str, str] = {
    "aio_config": "aio",
    "autotp_size": "tensor_parallel.autotp_size",
    "autotuning_enabled": "autotuning.enabled",
    "autotuning_end_profile_step": "autotuning.end_profile_step",
    "autotuning_metric": "autotuning.metric",
    "autotuning_metric_path": "autotuning.metric_path",
    "autotuning_model_info_path": "autotuning.model_info_path",
    "autotuning_profile_model_info": "autotuning.model_info.profile",
    "autotuning_start_profile_step": "autotuning.start_profile_step",
    "bf16_master_weights_and_gradients": "bf16.bf16_master_weights_and_grads",
    "bf16_optimizer_states": "bf16.bf16_optimizer_states",
    "checkpoint_serialization_enabled": "checkpoint.checkpoint_serialization",
    "checkpoint_tag_validation_enabled": "checkpoint.tag_validation",
    "checkpoint_tag_validation_fail": "checkpoint.tag_validation",
    "checkpoint_writer_enabled": "checkpoint.writer",
    "compile_autosp": "compile.passes",
    "compile_autotp": "compile.passes",
    "compile_zero_optimization_stage": "compile.passes",
    "cpuadam_cores_perc": f"{_ZERO}.offload_optimizer.cpuadam_cores_perc",
    "curriculum_learning_enabled": "data_efficiency.data_sampling.curriculum_learning.enabled",
    "data_efficiency_enabled": "data_efficiency.enabled",
    "data_sampling_enabled": "data_efficiency.data_sampling.enabled",
    "dataloader_drop_last": "dataloader_drop_last",
    "dynamic_loss_scale": "fp16.loss_scale",
    "dynamic_loss_scale_args": "fp16",
    "flops_profiler_detailed": "flops_profiler.detailed",
    "flops_profiler_enabled": "flops_profiler.enabled",
    "flops_profiler_module_depth": "flops_profiler.module_depth",
    "flops_profiler_output_file": "flops_profiler.output_file",
    "flops_profiler_profile_step": "flops_profiler.profile_step",
    "flops_profiler_recompute_fwd_factor": "flops_profiler.recompute_fwd_factor",
    "flops_profiler_top_modules": "flops_profiler.top_modules",
    "fp16_auto_cast": "fp16.auto_cast",
    "fp16_master_weights_and_gradients": "fp16.fp16_master_weights_and_grads",
    "gradient_predivide_factor": "gradient_predivide_factor",
    "initial_dynamic_scale": "fp16.initial_scale_power",
    "is_deepcompile_enabled": "compile.deepcompile",
    "is_sanity_checks_enabled": f"{_ZERO}.enable_sanity_checks",
    "load_universal_checkpoint": "checkpoint.load_universal",
    "optimizer_legacy_fusion": "optimizer.legacy_fusion",
    "postscale_gradients": "prescale_gradients",
    "random_ltd_enabled": "data_efficiency.data_routing.random_ltd.enabled",
    "super_offload": f"{_ZERO}.offload_optimizer.super_offload",
    "torch_autocast_dtype": "torch_autocast.dtype",
    "use_node_local_storage": "checkpoint.use_node_local_storage",
    "uses_parallelization_pass_only": "compile.passes",
    "zenflow_config": f"{_ZERO}.zenflow",
    "zero_allgather_bucket_size": f"{_ZERO}.allgather_bucket_size",
    "zero_allgather_partitions": f"{_ZERO}.allgather_partitions",
    "zero_allgather_sequential": f"{_ZERO}.allgather_sequential",
    "zero_allow_untested_optimizer": "zero_allow_untested_optimizer",
    "zero_compute_grad_norm": f"{_ZERO}.compute_grad_norm",
    "zero_contiguous_gradients": f"{_ZERO}.contiguous_gradients",
    "zero_cpu_offload": f"{_ZERO}.offload_optimizer.device",
    "zero_elastic_checkpoint": f"{_ZERO}.elastic_checkpoint",
    "zero_force_ds_cpu_optimizer": "zero_force_ds_cpu_optimizer",
    "zero_hpz_partition_size": f"{_ZERO}.zero_hpz_partition_size",
    "zero_ignore_unused_parameters": f"{_ZERO}.ignore_unused_parameters",
    "zero_legacy_stage1": f"{_ZERO}.legacy_stage1",
    "zero_load_from_fp32_weights": f"{_ZERO}.load_from_fp32_weights",
    "zero_log_trace_cache_warnings": f"{_ZERO}.log_trace_cache_warnings",
    "zero_max_live_parameters": f"{_ZERO}.max_live_parameters",
    "zero_max_reuse_distance": f"{_ZERO}.max_reuse_distance",
    "zero_model_persistence_threshold": f"{_ZERO}.model_persistence_threshold",
    "zero_module_granularity_threshold": f"{_ZERO}.module_granularity_threshold",
    "zero_multi_rank_bucket_allreduce": f"{_ZERO}.use_multi_rank_bucket_allreduce",
    "zero_nvme_offload_optimizer": f"{_ZERO}.offload_optimizer.device",
    "zero_overlap_comm": f"{_ZERO}.overlap_comm",
    "zero_param_persistence_threshold": f"{_ZERO}.param_persistence_threshold",
    "zero_parameter_alignment": f"{_ZERO}.parameter_alignment",
    "zero_partial_offload": f"{_ZERO}.offload_optimizer.ratio",
    "zero_prefetch_bucket_size": f"{_ZERO}.prefetch_bucket_size",
    "zero_quantized_gradients": f"{_ZERO}.zero_quantized_gradients",
    "zero_quantized_nontrainable_weights": f"{_ZERO}.zero_quantized_nontrainable_weights",
    "zero_quantized_weights": f"{_ZERO}.zero_quantized_weights",
    "zero_reduce_bucket_size": f"{_ZERO}.reduce_bucket_size",
    "zero_reduce_scatter": f"{_ZERO}.reduce_scatter",
    "zero_round_robin_gradients": f"{_ZERO}.round_robin_gradients",
    "zero_save_muon_momentum_buffer_in_memory": f"{_ZERO}.save_muon_momentum_buffer_in_memory",
    "zero_sub_group_size": f"{_ZERO}.sub_group_size",
    "zero_use_cpu_optimizer": f"{_ZERO}.offload_optimizer.device",
}
"""Methods that return a value of the config, with its key."""


def _has_pass(*names: str) -> Callable[[Any], bool]:
    return lambda passes: any(name in (passes or ()) for name in names)


def _file_in_working_directory(name: str) -> Callable[[Any], str]:
    return lambda path: path or os.path.join(os.getcwd(), name)  # noqa: PTH109, PTH118


def _loss_scale_arguments(block: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "init_scale": 2 ** block["initial_scale_power"],
        "scale_window": block["loss_scale_window"],
        "delayed_shift": block["hysteresis"],
        "consecutive_hysteresis": block["consecutive_hysteresis"],
        "min_scale": block["min_loss_scale"],
    }


CONVERSIONS: Mapping[str, Callable[[Any], Any]] = {
    "autotuning_metric_path": _file_in_working_directory("autotuning_metric.json"),
    "autotuning_model_info_path": _file_in_working_directory("autotuning_model_info.json"),
    "autotuning_profile_model_info": bool,
    "checkpoint_tag_validation_enabled": lambda mode: mode.lower() != "ignore",
    "checkpoint_tag_validation_fail": lambda mode: mode.lower() == "fail",
    "checkpoint_writer_enabled": lambda writer: writer is not None,
    "compile_autosp": _has_pass("autosp"),
    "compile_autotp": _has_pass("autotp"),
    "compile_zero_optimization_stage": _has_pass("z1", "z3"),
    "cpuadam_cores_perc": lambda share: 0.9 if share is None else share,
    "curriculum_learning_enabled": bool,
    "data_sampling_enabled": bool,
    "dynamic_loss_scale": lambda scale: scale == 0,
    "dynamic_loss_scale_args": _loss_scale_arguments,
    "initial_dynamic_scale": lambda power: 2**power,
    "postscale_gradients": lambda prescales: not prescales,
    "random_ltd_enabled": bool,
    "super_offload": bool,
    "torch_autocast_dtype": lambda name: DTYPES.get(str(name).removeprefix("torch.")),
    "uses_parallelization_pass_only": _has_pass("autosp", "autotp"),
    "zero_cpu_offload": lambda device: device == "cpu",
    "zero_nvme_offload_optimizer": lambda device: device == "nvme",
    "zero_partial_offload": lambda ratio: 1.0 if ratio is None else ratio,
    "zero_use_cpu_optimizer": lambda device: device in ("cpu", "nvme"),
}
"""Getters that do not return the value as it is in the config."""

_CURRICULUM = "curriculum learning is not supported: pass training_data or your own loader"
_COMPILE = "DeepCompile is not supported: use compile() or torch.compile"
_EXPERTS = "expert parallelism is not supported: keep experts as ordinary modules with stage 3"
_REDUCTION = "backward() reduces gradients; use torch.distributed for tensors of your own"
_TIMERS = "enable wall_clock_breakdown; tput_timer has the throughput"
_HOOKS = "register hooks on the model"
_CHECKPOINTS = "save_checkpoint() and load_checkpoint(); checkpointer() has their settings"
_OPTIMIZER = "set the block optimizer, or pass an optimizer to initialize()"

INSTEAD: Mapping[str, str] = {
    "all_gather_scalar": _REDUCTION,
    "all_to_all_group": _EXPERTS,
    "allreduce_and_copy": _REDUCTION,
    "allreduce_bucket": _REDUCTION,
    "allreduce_no_retain": _REDUCTION,
    "autotuning_model_info": "dsconfig tune finds a config that fits",
    "buffered_allreduce_fallback": _REDUCTION,
    "checkpoint_engine": _CHECKPOINTS,
    "checkpoint_mp_rank": _CHECKPOINTS,
    "client_lr_scheduler": "read lr_scheduler",
    "client_optimizer": "read optimizer",
    "clip_fp32_gradients": "set gradient_clipping: step() clips",
    "curriculum_learning_config": _CURRICULUM,
    "data_efficiency_config": "read config['data_efficiency'] if it is set",
    "data_sampling_config": _CURRICULUM,
    "enable_backward_allreduce": "use no_sync(), or coalesce_grad_reduction() from stage 2 on",
    "engine_timers": _TIMERS,
    "engine_timers_cache": _TIMERS,
    "expert_data_parallel_group": _EXPERTS,
    "expert_parallel_group": _EXPERTS,
    "first_dataloader_check": "deepspeed_io() returns a loader for this rank",
    "flatten": "use torch.nn.utils.parameters_to_vector",
    "flops": "set flops_profiler, or call get_model_profile()",
    "flops_profiler": "set flops_profiler, or call get_model_profile()",
    "fwd_duration": _TIMERS,
    "get_autosp_backend": _COMPILE,
    "get_autotp_backend": _COMPILE,
    "get_compile_time": _COMPILE,
    "get_deepcompile_backend": _COMPILE,
    "get_deepspeed_compile_backend": _COMPILE,
    "get_optimizer_configuration": _OPTIMIZER,
    "get_wall_clock_timers": _TIMERS,
    "load_module_state_dict": "load_state_dict() loads full weights",
    "load_moe_state_dict": _EXPERTS,
    "loaded_checkpoint_dp_world_size": _CHECKPOINTS,
    "loaded_checkpoint_mp_world_size": _CHECKPOINTS,
    "local_all_to_all_group": _EXPERTS,
    "losses": "sum the losses that the engine returns",
    "module_forward_post_hook": _HOOKS,
    "module_forward_pre_hook": _HOOKS,
    "monitor": "build a monitor with monitor.monitor.MonitorMaster",
    "print_forward_breakdown": _TIMERS,
    "random_ltd_config": _CURRICULUM,
    "random_ltd_initialize": _CURRICULUM,
    "random_ltd_scheduler": _CURRICULUM,
    "register_compile_pass": _COMPILE,
    "save_non_zero_checkpoint": _CHECKPOINTS,
    "save_zero_checkpoint": _CHECKPOINTS,
    "scale_wrt_gas": "pass scale_wrt_gas to backward()",
    "set_custom_curriculum_learning_schedule": _CURRICULUM,
    "set_train_batch_size": "build another engine, with the batch size in its config",
    "set_train_micro_batch_size": "build another engine, with the batch size in its config",
    "sparse_all_gather": _REDUCTION,
    "sparse_allreduce": _REDUCTION,
    "sparse_allreduce_bucket": _REDUCTION,
    "sparse_allreduce_no_retain": _REDUCTION,
    "summary_events": "build a monitor with monitor.monitor.MonitorMaster",
    "swap_tensor_config": "read zero_offload_optimizer() and zero_offload_param()",
    "tensor_parallel_config": "read autotp_size()",
    "timers": _TIMERS,
    "torch_autocast_lower_precision_safe_modules": "read config['torch_autocast']",
    "torch_autocast_z0_gradscaler": "read loss_scale",
    "training_data": "read training_dataloader.dataset",
    "unflatten": "use torch.nn.utils.vector_to_parameters",
    "update_interval": "step() updates the weights at each accumulation boundary",
    "warn_unscaled_loss": "backward() scales the loss",
    "_configure_basic_optimizer": _OPTIMIZER,
    "_configure_optimizer": _OPTIMIZER,
    "_configure_zero_optimizer": _OPTIMIZER,
}
"""Attributes of DeepSpeed's engine that dsengine does not have, and the alternatives."""


def refusal(name: str) -> str:
    """Return the error message for an attribute of INSTEAD."""
    return f"dsengine does not implement deepspeed.DeepSpeedEngine.{name}: {INSTEAD[name]}"


def attribute_of_model(model: nn.Module, name: str) -> Any:
    """Return what an engine that lacks ``name`` returns for it."""
    try:
        return getattr(model, name)
    except AttributeError:
        if name in INSTEAD:
            raise AttributeError(refusal(name)) from None
        raise


class Refused:
    """An attribute of INSTEAD, which raises AttributeError when it is read or set."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, engine: object, kind: type | None = None) -> Any:
        raise AttributeError(refusal(self._name))

    def __set__(self, engine: object, value: object) -> None:
        raise AttributeError(refusal(self._name))


class DeepSpeedAttributes:
    """The getters of GETTERS, the refusals of INSTEAD, and what needs no table."""

    dont_change_device = False
    has_moe_layers = False
    is_compiled = False
    is_deepcompile_active = staticmethod(lambda: False)
    mesh_device = mpu = None
    optimized_linear_base_weight_sharding = optimized_linear_lora_enabled = False
    use_ds_comm = False

    module: nn.Module
    topology: Topology
    _effective: dsconfig.Effective
    _reduces: bool

    @cached_property
    def _config_values(self) -> dict[str, Any]:
        return dsconfig.config_values(self._effective.config)

    @property
    def gate_modules(self) -> list[Any]:
        return []

    moe_layers = num_experts = gate_modules

    @property
    def gradient_average(self) -> bool:
        return self._effective.gradients.allreduce_op == "mean"

    @property
    def communication_data_type(self) -> torch.dtype:
        """The dtype in which gradients are reduced; set it in the config."""
        return DTYPES[str(self._effective.numerics.communication_dtype)]

    def get_data_types(self) -> tuple[torch.dtype, torch.dtype]:
        """Return the dtypes of the model and of accumulated gradients."""
        numerics = self._effective.numerics
        return DTYPES[str(numerics.precision)], DTYPES[str(numerics.grad_accum_dtype)]

    def collect_python_gc(self) -> int:
        """Collect garbage, with ``disable_python_gc`` too; return the number of objects."""
        return gc.collect()

    @property
    def inside_no_sync_ctxt(self) -> bool:
        return not self._reduces

    @property
    def param_names(self) -> dict[Tensor, str]:
        return {parameter: name for name, parameter in self.module.named_parameters()}

    # Ranks

    @property
    def dist_backend(self) -> str:
        return get_backend()

    def get_data_parallel_rank(self) -> int:
        return self.topology.rank("samples")

    def get_model_parallel_rank(self) -> int:
        return self.topology.rank("tensor")

    get_tensor_parallel_rank = get_model_parallel_rank

    def get_sequence_parallel_group(self) -> Any:
        return self.topology.group("sequence")

    seq_parallel_group = property(get_sequence_parallel_group)

    @property
    def seq_dp_world_size(self) -> int:
        return self.topology.size("gradients")

    @property
    def sequence_parallel_size(self) -> int:
        return self.topology.size("sequence")

    @property
    def pipeline_parallelism(self) -> bool:
        return self.topology.size("pipeline") > 1

    def is_first_weights_partition_group(self) -> bool:
        return self._effective.zero.stage == 3

    # Datasets

    @staticmethod
    def is_map_style_dataset(dataset: object) -> bool:
        return hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")

    @staticmethod
    def is_iterable_style_dataset(dataset: object) -> bool:
        return isinstance(dataset, IterableDataset)


def _getter(name: str, key: str) -> Callable[[Any], Any]:
    def get(self: DeepSpeedAttributes) -> Any:
        value: Any = self._config_values
        for part in key.split("."):
            value = None if value is None else value.get(part)
        convert = CONVERSIONS.get(name)
        return value if convert is None else convert(value)

    get.__name__ = get.__qualname__ = name
    get.__doc__ = f"Return ``{key}`` of the config."
    return get


for _name, _key in GETTERS.items():
    setattr(DeepSpeedAttributes, _name, _getter(_name, _key))
for _name in INSTEAD:
    setattr(DeepSpeedAttributes, _name, Refused(_name))
