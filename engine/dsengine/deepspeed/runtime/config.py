"""A whole ds_config as an object: what scripts ask it for, resolved for the ranks that run."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import dsconfig
from dsconfig import Facts
from dsengine.deepspeed.monitor.config import DeepSpeedMonitorConfig
from dsengine.deepspeed.refusals import missing
from dsengine.deepspeed.runtime.precision_config import DeepSpeedBF16Config, DeepSpeedFP16Config
from dsengine.deepspeed.runtime.zero.config import ConfigBlock, DeepSpeedZeroConfig
from dsengine.loop.planning import DeepSpeedConfigError
from dsengine.optimizers.precision import DTYPES

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
"""By attribute of :class:`DeepSpeedConfig`, the block of the file."""
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
"""By attribute, a key inside of a block."""
_DTYPES = (
    "communication_data_type",
    "seq_parallel_communication_data_type",
    "torch_autocast_dtype",
)
"""Attributes that are dtypes of torch."""


class DeepSpeedConfig:
    """What DeepSpeed holds of a config once it has read it, by its names.

    ``config``: a path, a dict or base64. The batch is settled for the ranks of the process group,
    one where there is none, or those of ``mpu``. Plain keys are attributes of their own name with
    the default of the release, and "auto" where DeepSpeed stops at that later; blocks are objects
    (``zero_config.stage``, ``float16_config``, ``monitor_config.csv_monitor``).

    Raises DeepSpeedConfigError (a ValueError) with everything at which DeepSpeed would stop while
    it reads the config.
    """

    def __init__(self, config: str | os.PathLike[str] | Mapping[str, Any], mpu: Any = None) -> None:
        source = Path(config) if isinstance(config, os.PathLike) else config
        document = dsconfig.read(source)
        self.global_rank = dist.get_rank() if dist.is_initialized() else 0
        ranks = _ranks(mpu)
        settled = _settled(document, ranks).config
        found = dsconfig.config_values({n: v for n, v in settled.items() if v != "auto"})
        self._param_dict: dict[str, Any] = document.value
        self.train_batch_size: int
        self.train_micro_batch_size_per_gpu: int
        self.gradient_accumulation_steps: int
        for name, value in found.items():
            if not isinstance(value, dict):
                setattr(self, name, "auto" if settled.get(name) == "auto" else value)
        for name, path in _INSIDE.items():
            block, _, key = path.partition(".")
            setattr(self, name, found[block].get(key))
        for name in _DTYPES:
            setattr(self, name, _dtype(getattr(self, name)))
        for name, (block, kind) in _BLOCKS.items():
            setattr(self, name, kind.holding(found[block]))
        self.aio_config: dict[str, Any] = found["aio"]
        self.monitor_config = DeepSpeedMonitorConfig.of(found)
        logs = found["comms_logger"]
        is_on: bool = logs["enabled"]
        self.comms_config = ConfigBlock.holding(
            {"comms_logger_enabled": is_on, **({"comms_logger": logs} if is_on else {})}
        )
        timers = dsconfig.block_values(
            "timers", {"throughput": found["timers"]["throughput"] or {}}
        )
        self.timers_config = ConfigBlock.holding(timers["throughput"])
        self.zero_enabled = found["zero_optimization"]["stage"] > 0
        self.optimizer_name = _in_lower(found["optimizer"]["type"])
        self.gradient_allreduce_op = found["gradient_allreduce_op"].lower()
        self.wall_clock_breakdown: bool = (
            found["wall_clock_breakdown"] or found["flops_profiler"]["enabled"]
        )
        validation = found["checkpoint"]["tag_validation"].lower()
        self.checkpoint_tag_validation_enabled = validation != "ignore"
        self.checkpoint_tag_validation_fail = validation == "fail"
        shared = found["sequence_parallel_size"] or 1
        self.world_size = ranks // shared if ranks % shared == 0 else ranks / shared

    def _configure_train_batch_size(self) -> None:
        """Settle anew what of the three batch sizes is None. Raises DeepSpeedConfigError."""
        given = {name: value for name in BATCH if (value := getattr(self, name)) is not None}
        settled = _settled(dsconfig.read(given), int(self.world_size)).config
        for name in BATCH:
            setattr(self, name, settled[name])

    def __repr__(self) -> str:
        fields = ", ".join(f"{n}={value!r}" for n, value in vars(self).items() if n[0] != "_")
        return f"{type(self).__name__}({fields})"


def _ranks(mpu: Any) -> int:
    """Those among which the samples of a step are divided, of which some may share a sequence."""
    if hasattr(mpu, "get_data_parallel_world_size"):
        return int(mpu.get_data_parallel_world_size())
    return dist.get_world_size() if dist.is_initialized() else 1


def _settled(document: dsconfig.Document, ranks: int) -> dsconfig.Resolution:
    facts = Facts(world_size=ranks)
    report = dsconfig.validate(document, facts, runtime="deepspeed")
    refused = [each for each in report.refusals if not each.late]
    if refused:
        raise DeepSpeedConfigError("\n".join(map(_invalid, refused)))
    return dsconfig.resolve(document, facts, runtime="deepspeed")


def _invalid(found: dsconfig.Diagnostic) -> str:
    key = found.pointer.strip("/").replace("/", ".") or "config"
    return f"Invalid {key}. {found.code}: {found.message}" + (
        f" ({found.help})" if found.help else ""
    )


def _in_lower(kind: str | None) -> str | None:
    """One of DeepSpeed's own optimizers in lower case, torch's as it is."""
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

    get.__doc__ = f"""Return ``{name}`` of a config as it is written, or its default."""
    return get


get_train_batch_size = _reader("train_batch_size")
get_train_micro_batch_size_per_gpu = _reader("train_micro_batch_size_per_gpu")
get_gradient_accumulation_steps = _reader("gradient_accumulation_steps")
get_gradient_clipping = _reader("gradient_clipping")
get_steps_per_print = _reader("steps_per_print")
get_log_level = _reader("log_level")

_OPTIMIZER = "_OPTIMIZER"


def __getattr__(name: str) -> Any:
    """``ADAM_OPTIMIZER``: the type by which a config names it."""
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
