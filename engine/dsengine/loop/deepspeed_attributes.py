"""The attributes of DeepSpeed's engine that are no method of ours: one table.

``TABLE`` has, by name, a getter (a function for a method, a property for an attribute), a constant,
or a refusal. What has no counterpart raises an AttributeError that states the alternative, when it
is read (unless the model has the attribute) and when it is set: a script that sets
``enable_backward_allreduce`` would otherwise train differently without notice.
"""

import gc
import os
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any, TypeVar

import torch
from torch import nn
from torch.utils.data import IterableDataset

from dsconfig.features.deepspeed_names import ATTRIBUTES, missing
from dsengine.communication.devices import get_backend
from dsengine.optimizers.precision import DTYPES
from dsengine.optimizers.schedules.base import groups_of, learning_rates, momenta
from dsengine.topology import rank

_ZERO = "zero_optimization"


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


_NAMED_AFTER = {
    "autotuning": "enabled end_profile_step metric start_profile_step",
    "flops_profiler": (
        "detailed enabled module_depth output_file profile_step recompute_fwd_factor top_modules"
    ),
    _ZERO: (
        "allgather_bucket_size allgather_partitions allgather_sequential compute_grad_norm "
        "contiguous_gradients elastic_checkpoint ignore_unused_parameters legacy_stage1 "
        "load_from_fp32_weights log_trace_cache_warnings max_live_parameters "
        "max_reuse_distance model_persistence_threshold module_granularity_threshold "
        "overlap_comm param_persistence_threshold parameter_alignment prefetch_bucket_size "
        "reduce_bucket_size reduce_scatter round_robin_gradients "
        "save_muon_momentum_buffer_in_memory sub_group_size"
    ),
}
"""By block, the keys with a method of the same name after ``zero_`` or the name of the block."""

GETTERS: Mapping[str, str | tuple[str, Callable[[Any], Any]]] = {
    **{
        f"{'zero' if block == _ZERO else block}_{key}": f"{block}.{key}"
        for block, keys in _NAMED_AFTER.items()
        for key in keys.split()
    },
    "zero_hpz_partition_size": f"{_ZERO}.zero_hpz_partition_size",
    "zero_multi_rank_bucket_allreduce": f"{_ZERO}.use_multi_rank_bucket_allreduce",
    "zero_quantized_gradients": f"{_ZERO}.zero_quantized_gradients",
    "zero_quantized_nontrainable_weights": f"{_ZERO}.zero_quantized_nontrainable_weights",
    "zero_quantized_weights": f"{_ZERO}.zero_quantized_weights",
    "aio_config": "aio",
    "autotp_size": "tensor_parallel.autotp_size",
    "autotuning_metric_path": (
        "autotuning.metric_path",
        _file_in_working_directory("autotuning_metric.json"),
    ),
    "autotuning_model_info_path": (
        "autotuning.model_info_path",
        _file_in_working_directory("autotuning_model_info.json"),
    ),
    "autotuning_profile_model_info": ("autotuning.model_info.profile", bool),
    "bf16_master_weights_and_gradients": "bf16.bf16_master_weights_and_grads",
    "bf16_optimizer_states": "bf16.bf16_optimizer_states",
    "checkpoint_serialization_enabled": "checkpoint.checkpoint_serialization",
    "checkpoint_tag_validation_enabled": (
        "checkpoint.tag_validation",
        lambda mode: mode.lower() != "ignore",
    ),
    "checkpoint_tag_validation_fail": (
        "checkpoint.tag_validation",
        lambda mode: mode.lower() == "fail",
    ),
    "checkpoint_writer_enabled": ("checkpoint.writer", lambda writer: writer is not None),
    "compile_autosp": ("compile.passes", _has_pass("autosp")),
    "compile_autotp": ("compile.passes", _has_pass("autotp")),
    "compile_zero_optimization_stage": ("compile.passes", _has_pass("z1", "z3")),
    "cpuadam_cores_perc": (
        f"{_ZERO}.offload_optimizer.cpuadam_cores_perc",
        lambda share: 0.9 if share is None else share,
    ),
    "curriculum_learning_enabled": (
        "data_efficiency.data_sampling.curriculum_learning.enabled",
        bool,
    ),
    "data_efficiency_enabled": "data_efficiency.enabled",
    "data_sampling_enabled": ("data_efficiency.data_sampling.enabled", bool),
    "dataloader_drop_last": "dataloader_drop_last",
    "dynamic_loss_scale": ("fp16.loss_scale", lambda scale: scale == 0),
    "dynamic_loss_scale_args": ("fp16", _loss_scale_arguments),
    "fp16_auto_cast": "fp16.auto_cast",
    "fp16_master_weights_and_gradients": "fp16.fp16_master_weights_and_grads",
    "gradient_predivide_factor": "gradient_predivide_factor",
    "initial_dynamic_scale": ("fp16.initial_scale_power", lambda power: 2**power),
    "is_deepcompile_enabled": "compile.deepcompile",
    "is_sanity_checks_enabled": f"{_ZERO}.enable_sanity_checks",
    "load_universal_checkpoint": "checkpoint.load_universal",
    "optimizer_legacy_fusion": "optimizer.legacy_fusion",
    "postscale_gradients": ("prescale_gradients", lambda prescales: not prescales),
    "random_ltd_enabled": ("data_efficiency.data_routing.random_ltd.enabled", bool),
    "super_offload": (f"{_ZERO}.offload_optimizer.super_offload", bool),
    "torch_autocast_dtype": (
        "torch_autocast.dtype",
        lambda name: DTYPES.get(str(name).removeprefix("torch.")),
    ),
    "use_node_local_storage": "checkpoint.use_node_local_storage",
    "uses_parallelization_pass_only": ("compile.passes", _has_pass("autosp", "autotp")),
    "zenflow_config": f"{_ZERO}.zenflow",
    "zero_allow_untested_optimizer": "zero_allow_untested_optimizer",
    "zero_cpu_offload": (f"{_ZERO}.offload_optimizer.device", lambda device: device == "cpu"),
    "zero_force_ds_cpu_optimizer": "zero_force_ds_cpu_optimizer",
    "zero_nvme_offload_optimizer": (
        f"{_ZERO}.offload_optimizer.device",
        lambda device: device == "nvme",
    ),
    "zero_partial_offload": (
        f"{_ZERO}.offload_optimizer.ratio",
        lambda ratio: 1.0 if ratio is None else ratio,
    ),
    "zero_use_cpu_optimizer": (
        f"{_ZERO}.offload_optimizer.device",
        lambda device: device in ("cpu", "nvme"),
    ),
}
"""Methods that return a value of the config: its key, or the key and a conversion."""


class Constant:
    """An attribute with the same value for every engine; scripts may set it."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __get__(self, engine: object, kind: type | None = None) -> Any:
        return self._value


class Refused:
    """An attribute that dsengine does not have: AttributeError when it is read or set."""

    def __init__(self, name: str) -> None:
        self._message = missing(f"DeepSpeedEngine.{name}", ATTRIBUTES[name])

    def __get__(self, engine: object, kind: type | None = None) -> Any:
        raise AttributeError(self._message)

    def __set__(self, engine: object, value: object) -> None:
        raise AttributeError(self._message)


def _sparse_weights(engine: Any) -> set[str]:
    """Return the names of weights with sparse gradients: embeddings, with ``sparse_gradients``."""
    if not engine.plan.effective.gradients.sparse:
        return set()
    tables = (nn.Embedding, nn.EmbeddingBag)
    named = engine.module.named_modules()
    return {f"{name}.weight" for name, module in named if isinstance(module, tables)}


def _optimizer_name(engine: Any) -> str | None:
    """Return the config's name for the optimizer, or the class of the one passed in."""
    named, optimizer = engine.plan.effective.optimizer, engine.optimizer
    if optimizer is None:
        return None
    return named.type.lower() if named is not None else type(optimizer).__name__


def _data_types(engine: Any) -> tuple[torch.dtype, torch.dtype]:
    """Return the dtypes of the model and of accumulated gradients."""
    numerics = engine.plan.effective.numerics
    return DTYPES[str(numerics.precision)], DTYPES[str(numerics.grad_accum_dtype)]


def _block(name: str, field: str) -> Callable[[Any], Any]:
    """Return a method for ``field`` of the config's block ``name``; None without the block."""
    return lambda e: getattr(getattr(e.plan.effective, name), field, None)


QUERIES: Mapping[str, Any] = {
    # Counters
    "global_samples": property(lambda e: e.counters.global_samples),
    "global_steps": property(lambda e: e.counters.global_steps),
    "micro_steps": property(lambda e: e.counters.micro_steps),
    "skipped_steps": property(lambda e: e.counters.skipped_steps),
    # Optimizer and schedule
    "basic_optimizer": property(lambda e: e.optimizer),
    "get_lr": lambda e: learning_rates(e.optimizer),
    "get_mom": lambda e: momenta(e.optimizer),
    "get_type": lambda e: [group.get("type") for group in groups_of(e.optimizer)],
    "optimizer_name": _optimizer_name,
    "optimizer_params": _block("optimizer", "params"),
    "scheduler_name": _block("scheduler", "type"),
    "scheduler_params": _block("scheduler", "params"),
    "sparse_tensor_module_names": property(_sparse_weights),
    # Batch
    "get_batch_info": lambda e: (
        e.train_batch_size(),
        e.train_micro_batch_size_per_gpu(),
        e.gradient_accumulation_steps(),
    ),
    "gradient_accumulation_steps": lambda e: e._accumulation.steps,
    "managed_gradient_accumulation": _block("gradients", "managed_accumulation"),
    "train_batch_size": lambda e: e.plan.batch.global_batch,
    "train_micro_batch_size_per_gpu": lambda e: e.plan.batch.micro_batch,
    # Precision and gradients
    "bfloat16_enabled": lambda e: e.plan.effective.numerics.precision == "bf16",
    "communication_data_type": property(
        lambda e: DTYPES[str(e.plan.effective.numerics.communication_dtype)]
    ),
    "cur_scale": property(lambda e: e.loss_scaler.scale),
    "fp16_enabled": lambda e: e.plan.effective.numerics.precision == "fp16",
    "get_data_types": _data_types,
    "gradient_average": property(lambda e: e.plan.effective.gradients.allreduce_op == "mean"),
    "gradient_clipping": _block("gradients", "clipping"),
    "inside_no_sync_ctxt": property(lambda e: not e._windows.reduces),
    "loss_scale": property(lambda e: e.loss_scaler.scale),
    "torch_autocast_enabled": lambda e: e.plan.effective.numerics.autocast is not None,
    # ZeRO
    "is_first_weights_partition_group": lambda e: e.zero_optimization_stage() == 3,
    "zero_gather_16bit_weights_on_model_save": _block("zero", "gather_16bit_weights_on_model_save"),
    "zero_offload_optimizer": _block("zero", "offload_optimizer"),
    "zero_offload_param": _block("zero", "offload_param"),
    "zero_optimization": lambda e: e.zero_optimization_stage() > 0,
    "zero_optimization_partition_gradients": lambda e: e.zero_optimization_stage() >= 2,
    "zero_optimization_partition_weights": lambda e: e.zero_optimization_stage() >= 3,
    "zero_optimization_stage": _block("zero", "stage"),
    # Reports
    "dump_state": _block("reporting", "dump_state"),
    "log_level": _block("reporting", "log_level"),
    "memory_breakdown": _block("reporting", "memory_breakdown"),
    "steps_per_print": _block("reporting", "steps_per_print"),
    "wall_clock_breakdown": _block("reporting", "wall_clock_breakdown"),
    # Ranks
    "data_parallel_group": property(lambda e: e.topology.group("samples")),
    "dist_backend": property(lambda e: get_backend()),
    "dp_world_size": property(lambda e: e.topology.size("samples")),
    "get_data_parallel_rank": lambda e: e.topology.rank("samples"),
    "get_model_parallel_rank": lambda e: e.topology.rank("tensor"),
    "get_sequence_parallel_group": lambda e: e.topology.group("sequence"),
    "get_tensor_parallel_rank": lambda e: e.topology.rank("tensor"),
    "global_rank": property(lambda e: rank()),
    "local_rank": property(lambda e: int(os.environ.get("LOCAL_RANK", 0))),
    "mp_world_size": property(lambda e: e.topology.size("tensor")),
    "pipeline_parallelism": property(lambda e: e.topology.size("pipeline") > 1),
    "seq_data_parallel_group": property(lambda e: e.topology.group("gradients")),
    "seq_dp_world_size": property(lambda e: e.topology.size("gradients")),
    "seq_parallel_group": property(lambda e: e.topology.group("sequence")),
    "sequence_parallel_size": property(lambda e: e.topology.size("sequence")),
    "world_size": property(lambda e: e.plan.mesh.world_size),
    # Model, config and data
    "collect_python_gc": lambda e: gc.collect(),
    "config": property(lambda e: dict(e.plan.effective.config)),
    "gate_modules": property(lambda e: []),
    "is_iterable_style_dataset": staticmethod(lambda data: isinstance(data, IterableDataset)),
    "is_map_style_dataset": staticmethod(
        lambda data: hasattr(data, "__getitem__") and hasattr(data, "__len__")
    ),
    "moe_layers": property(lambda e: []),
    "num_experts": property(lambda e: []),
    "param_names": property(lambda e: {p: name for name, p in e.module.named_parameters()}),
    # What no config changes
    "dont_change_device": Constant(False),
    "has_moe_layers": Constant(False),
    "is_compiled": Constant(False),
    "is_deepcompile_active": staticmethod(lambda: False),
    "mesh_device": Constant(None),
    "mpu": Constant(None),
    "optimized_linear_base_weight_sharding": Constant(False),
    "optimized_linear_lora_enabled": Constant(False),
    "use_ds_comm": Constant(False),
}
"""What needs an engine. Methods take no arguments."""


def _config_getter(row: str | tuple[str, Callable[[Any], Any]]) -> Callable[[Any], Any]:
    key, convert = (row, None) if isinstance(row, str) else row

    def get(engine: Any) -> Any:
        value: Any = engine._config_values
        for part in key.split("."):
            value = None if value is None else value.get(part)
        return value if convert is None else convert(value)

    get.__doc__ = f"Return ``{key}`` of the config."
    return get


Kind = TypeVar("Kind", bound=type)
TABLE: Mapping[str, Any] = {
    **{name: _config_getter(row) for name, row in GETTERS.items()},
    **QUERIES,
    **{name: Refused(name) for name in ATTRIBUTES},
}
"""By name, a descriptor."""

for _name, _row in TABLE.items():
    if isinstance(_row, FunctionType):
        _row.__name__ = _row.__qualname__ = _name
    elif isinstance(_row, property):
        _row.__set_name__(None, _name)  # type: ignore[attr-defined]


def with_table(kind: Kind) -> Kind:
    """Give a class the attributes of the table that it does not define."""
    for name in TABLE.keys() - set(dir(kind)):
        setattr(kind, name, TABLE[name])
    return kind
