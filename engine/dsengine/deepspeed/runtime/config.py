"""A ds_config as an object with DeepSpeed's attributes, resolved for the running ranks."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

import dsconfig
from dsconfig import Facts
from dsengine.deepspeed.monitor.config import DeepSpeedMonitorConfig
from dsengine.deepspeed.names import missing
from dsengine.deepspeed.runtime.precision_config import DeepSpeedBF16Config, DeepSpeedFP16Config
from dsengine.deepspeed.runtime.zero.config import ConfigBlock, DeepSpeedZeroConfig
from dsengine.loop.planning import DeepSpeedConfigError
from dsengine.optimizers.precision import DTYPES
from dsengine.topology import rank, world_size

BATCH = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
_BLOCKS: Mapping[str, tuple[str, type[ConfigBlock]]] = {
    "zero_config": ("zero_optimization", DeepSpeedZeroConfig),
    "float16_config": ("fp16", DeepSpeedFP16Config),
    "bfloat16_config": ("bf16", DeepSpeedBF16Config),
    "activation_checkpointing_config": ("activation_checkpointing", ConfigBlock),
    "flops_profiler_config": ("flops_profiler", ConfigBlock),
    "compile_config": ("compile", ConfigBlock),
    "autotuning_config": ("autotuning", ConfigBlock),
    "hybrid_engine": ("hybrid_engine", ConfigBlock),
}
"""By attribute of :class:`DeepSpeedConfig`, the block of the config."""
_INSIDE = {
    "optimizer_name": "optimizer.type",
    "optimizer_params": "optimizer.params",
    "optimizer_legacy_fusion": "optimizer.legacy_fusion",
    "scheduler_name": "scheduler.type",
    "scheduler_params": "scheduler.params",
    "zero_optimization_stage": "zero_optimization.stage",
    "torch_autocast_enabled": "torch_autocast.enabled",
    "torch_autocast_dtype": "torch_autocast.dtype",
    "torch_autocast_lower_precision_safe_modules": "torch_autocast.lower_precision_safe_modules",
    "grad_accum_dtype": "data_types.grad_accum_dtype",
    "param_dtype": "data_types.param_dtype",
    "buffer_dtype": "data_types.buffer_dtype",
    "keep_in_fp32_modules": "data_types.keep_in_fp32_modules",
    "load_universal_checkpoint": "checkpoint.load_universal",
    "use_node_local_storage": "checkpoint.use_node_local_storage",
    "data_efficiency_enabled": "data_efficiency.enabled",
}
"""By attribute, a key inside a block."""
_DTYPES = (
    "communication_data_type",
    "seq_parallel_communication_data_type",
    "torch_autocast_dtype",
)
"""Attributes that are torch dtypes."""


class DeepSpeedConfig:
    """A parsed config with DeepSpeed's attribute names.

    ``config``: a path, a dict or base64. The batch is resolved for the ranks of the process group
    (one without a group), or those of ``mpu``. Plain keys are attributes with the release's
    defaults, or "auto" where DeepSpeed only fails later; blocks are objects
    (``zero_config.stage``, ``float16_config``, ``monitor_config.csv_monitor``).

    Raises DeepSpeedConfigError (a ValueError) with all errors that DeepSpeed would raise while it
    parses the config.
    """

    def __init__(self, config: str | os.PathLike[str] | Mapping[str, Any], mpu: Any = None) -> None:
        source = Path(config) if isinstance(config, os.PathLike) else config
        document = dsconfig.read(source)
        self.global_rank = rank()
        ranks = _ranks(mpu)
        resolved = _resolve(document, ranks).config
        values = dsconfig.config_values({n: v for n, v in resolved.items() if v != "auto"})
        self._param_dict: dict[str, Any] = document.value
        self.train_batch_size: int
        self.train_micro_batch_size_per_gpu: int
        self.gradient_accumulation_steps: int
        for name, value in values.items():
            if not isinstance(value, dict):
                setattr(self, name, "auto" if resolved.get(name) == "auto" else value)
        for name, path in _INSIDE.items():
            block, _, key = path.partition(".")
            setattr(self, name, values[block].get(key))
        for name in _DTYPES:
            setattr(self, name, _dtype(getattr(self, name)))
        for name, (block, kind) in _BLOCKS.items():
            setattr(self, name, kind.holding(values[block]))
        self.aio_config: dict[str, Any] = values["aio"]
        self.monitor_config = DeepSpeedMonitorConfig.of(values)
        logs = values["comms_logger"]
        is_on: bool = logs["enabled"]
        self.comms_config = ConfigBlock.holding(
            {"comms_logger_enabled": is_on, **({"comms_logger": logs} if is_on else {})}
        )
        timers = dsconfig.block_values(
            "timers", {"throughput": values["timers"]["throughput"] or {}}
        )
        self.timers_config = ConfigBlock.holding(timers["throughput"])
        self.zero_enabled = values["zero_optimization"]["stage"] > 0
        self.optimizer_name = _normalize(values["optimizer"]["type"])
        self.gradient_allreduce_op = values["gradient_allreduce_op"].lower()
        self.wall_clock_breakdown: bool = (
            values["wall_clock_breakdown"] or values["flops_profiler"]["enabled"]
        )
        validation = values["checkpoint"]["tag_validation"].lower()
        self.checkpoint_tag_validation_enabled = validation != "ignore"
        self.checkpoint_tag_validation_fail = validation == "fail"
        sequence_parallel = values["sequence_parallel_size"] or 1
        even = ranks % sequence_parallel == 0
        self.world_size = ranks // sequence_parallel if even else ranks / sequence_parallel

    def _configure_train_batch_size(self) -> None:
        """Resolve those of the batch sizes that are None. Raises DeepSpeedConfigError."""
        batch = {name: value for name in BATCH if (value := getattr(self, name)) is not None}
        resolved = _resolve(dsconfig.read(batch), int(self.world_size)).config
        for name in BATCH:
            setattr(self, name, resolved[name])

    def __repr__(self) -> str:
        fields = ", ".join(f"{n}={value!r}" for n, value in vars(self).items() if n[0] != "_")
        return f"{type(self).__name__}({fields})"


def _ranks(mpu: Any) -> int:
    """Return the data-parallel ranks, some of which may share a sequence."""
    if hasattr(mpu, "get_data_parallel_world_size"):
        return int(mpu.get_data_parallel_world_size())
    return world_size()


def _resolve(document: dsconfig.Document, ranks: int) -> dsconfig.Resolution:
    facts = Facts(world_size=ranks)
    report = dsconfig.validate(document, facts, runtime="deepspeed")
    refusals = [finding for finding in report.refusals if not finding.late]
    if refusals:
        raise DeepSpeedConfigError("\n".join(map(_invalid, refusals)))
    return dsconfig.resolve(document, facts, runtime="deepspeed")


def _invalid(finding: dsconfig.Diagnostic) -> str:
    key = finding.pointer.strip("/").replace("/", ".") or "config"
    return f"Invalid {key}. {finding.code}: {finding.message}" + (
        f" ({finding.help})" if finding.help else ""
    )


def _normalize(kind: str | None) -> str | None:
    """Return DeepSpeed's own optimizers in lower case, others unchanged."""
    known = None if kind is None else dsconfig.optimizer_type(kind)
    return known.name.lower() if known is not None and known.is_own else kind


def _dtype(name: str | None) -> torch.dtype | None:
    if name is None or isinstance(name, torch.dtype):
        return name
    short = name.lower().removeprefix("torch.")
    return DTYPES[short] if short in DTYPES else getattr(torch, short)


def _reader(name: str) -> Callable[[Mapping[str, Any]], Any]:
    def get(param_dict: Mapping[str, Any]) -> Any:
        return param_dict.get(name, dsconfig.config_values({})[name])

    get.__doc__ = f"""Return ``{name}`` of a config unchanged, or its default."""
    return get


get_train_batch_size = _reader("train_batch_size")
get_train_micro_batch_size_per_gpu = _reader("train_micro_batch_size_per_gpu")
get_gradient_accumulation_steps = _reader("gradient_accumulation_steps")
get_gradient_clipping = _reader("gradient_clipping")
get_steps_per_print = _reader("steps_per_print")
get_log_level = _reader("log_level")

_OPTIMIZER = "_OPTIMIZER"


def __getattr__(name: str) -> Any:
    """Return the optimizer type of a name such as ``ADAM_OPTIMIZER``."""
    kind = name.removesuffix(_OPTIMIZER).replace("_", "").lower()
    known = dsconfig.optimizer_type(kind) if name.endswith(_OPTIMIZER) else None
    if known is not None and known.is_own:
        return kind
    return missing(__name__, "runtime.config")(name)


__all__ = [
    "DeepSpeedConfig",
    "DeepSpeedConfigError",
    "get_gradient_accumulation_steps",
    "get_gradient_clipping",
    "get_log_level",
    "get_steps_per_print",
    "get_train_batch_size",
    "get_train_micro_batch_size_per_gpu",
]
