"""A ds_config and its blocks as objects, with DeepSpeed's attributes.

Blocks are views of the one table of keys, with defaults and former names of keys. As in DeepSpeed,
an invalid value raises pydantic's ValidationError, and a deprecated key is logged.
"""

import os
from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from pydantic import BaseModel, ConfigDict

import dsconfig
from dsconfig import Facts
from dsengine.loop.misuse import ArgumentError
from dsengine.loop.planning import DeepSpeedConfigError
from dsengine.observation.monitors import BLOCKS
from dsengine.observation.printing import script_logger
from dsengine.optimizers.precision import DTYPES
from dsengine.topology import rank, world_size


class ZeroStageEnum(IntEnum):
    """ZeRO stages, named after what they shard."""

    disabled = 0
    optimizer_states = 1
    gradients = 2
    weights = 3
    max_stage = 3


class ConfigBlock:
    """A block of a config, whose fields are attributes as in DeepSpeed's model."""

    path: ClassVar[tuple[str, ...]]
    inner: ClassVar[Mapping[str, "type[ConfigBlock]"]] = {}
    """Nested blocks by field."""

    def __init__(self, **values: Any) -> None:
        top, *below = self.path
        content: dict[str, Any] = values
        for name in reversed(below):
            content = {"stage": 3, name: content}  # at which all keys are used
        _check(type(self).__name__, self.path, content)
        values = dsconfig.block_values(top, content)
        for name in below:
            values = values[name]
        self._assign(values)

    @classmethod
    def holding(cls, values: Mapping[str, Any]) -> Self:
        """Return a block of validated and complete values."""
        block = object.__new__(cls)
        block._assign(values)
        return block

    def _assign(self, values: Mapping[str, Any]) -> None:
        for name, value in values.items():
            if isinstance(value, dict):
                value = self.inner.get(name, ConfigBlock).holding(value)
            setattr(self, name, value)

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({fields})"


class DeepSpeedZeroOffloadParamConfig(ConfigBlock):
    path = ("zero_optimization", "offload_param")


class DeepSpeedZeroOffloadOptimizerConfig(ConfigBlock):
    path = ("zero_optimization", "offload_optimizer")
    pipeline_read: bool
    pipeline_write: bool

    @property
    def pipeline(self) -> bool:
        """Whether reads or writes of states are pipelined."""
        return self.pipeline_read or self.pipeline_write


class DeepSpeedZeroLeafModuleConfig(ConfigBlock):
    path = ("zero_optimization", "leaf_module")
    classes: list[str]
    names: list[str]
    name_suffixes: list[str]


class DeepSpeedZeroConfig(ConfigBlock):
    path = ("zero_optimization",)
    inner: ClassVar[Mapping[str, type[ConfigBlock]]] = {
        "offload_param": DeepSpeedZeroOffloadParamConfig,
        "offload_optimizer": DeepSpeedZeroOffloadOptimizerConfig,
        "leaf_module": DeepSpeedZeroLeafModuleConfig,
    }
    stage: int
    leaf_module: DeepSpeedZeroLeafModuleConfig | None = None

    def _assign(self, values: Mapping[str, Any]) -> None:
        super()._assign(values)
        self.stage = ZeroStageEnum(self.stage)
        self.leaf_module = self.leaf_module or DeepSpeedZeroLeafModuleConfig()


def _check(title: str, path: tuple[str, ...], content: dict[str, Any]) -> None:
    from pydantic_core import InitErrorDetails, PydanticCustomError, ValidationError

    report = dsconfig.validate({"train_batch_size": 1, path[0]: content}, runtime="deepspeed")
    prefix = "/" + "/".join(path)
    of_block = [d for d in report.diagnostics if (d.pointer or "").startswith(prefix)]
    errors = [
        InitErrorDetails(
            type=PydanticCustomError("ds_config", "{why}", {"why": finding.message}),
            loc=tuple(str(finding.pointer).removeprefix(prefix).strip("/").split("/")),
            input=content,
        )
        for finding in of_block
        if finding.effect == "refused"
    ]
    if errors:
        raise ValidationError.from_exception_data(title, errors)
    for finding in of_block:
        if finding.effect == "deprecated":
            script_logger.warning(finding.message)


_default = DeepSpeedZeroLeafModuleConfig()
DEFAULT_LEAF_MODULE_CLASSES = list(_default.classes)
DEFAULT_LEAF_MODULE_NAMES = list(_default.names)
DEFAULT_LEAF_MODULE_NAME_SUFFIXES = list(_default.name_suffixes)


class DeepSpeedFP16Config(ConfigBlock):
    path = ("fp16",)


class DeepSpeedBF16Config(ConfigBlock):
    path = ("bf16",)


def get_bfloat16_config(param_dict: Mapping[str, Any]) -> DeepSpeedBF16Config:
    """Return the bf16 block of a config, also if it has its former name."""
    return DeepSpeedBF16Config(**(param_dict.get("bf16") or param_dict.get("bfloat16") or {}))


class TensorBoardConfig(ConfigBlock):
    path = ("tensorboard",)


class WandbConfig(ConfigBlock):
    path = ("wandb",)


class CometConfig(ConfigBlock):
    path = ("comet",)


class CSVConfig(ConfigBlock):
    path = ("csv_monitor",)


_KINDS = {kind.path[0]: kind for kind in (TensorBoardConfig, WandbConfig, CometConfig, CSVConfig)}


class DeepSpeedMonitorConfig:
    """The four blocks, with defaults for missing ones."""

    tensorboard: TensorBoardConfig
    wandb: WandbConfig
    comet: CometConfig
    csv_monitor: CSVConfig

    def __init__(self, **blocks: Mapping[str, Any]) -> None:
        for name, kind in _KINDS.items():
            setattr(self, name, kind(**blocks.pop(name, {})))
        if blocks:
            raise ValueError(f"unknown monitor: {', '.join(blocks)}; known: {', '.join(BLOCKS)}")

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> "DeepSpeedMonitorConfig":
        """Return the blocks of a validated and complete config."""
        blocks = object.__new__(cls)
        for name, kind in _KINDS.items():
            setattr(blocks, name, kind.holding(config[name]))
        return blocks

    @property
    def enabled(self) -> bool:
        """Whether any monitor is enabled."""
        return any(getattr(self, name).enabled for name in _KINDS)


def get_monitor_config(param_dict: Mapping[str, Any]) -> DeepSpeedMonitorConfig:
    """Return the monitor blocks of a config."""
    return DeepSpeedMonitorConfig(**{name: param_dict.get(name, {}) for name in _KINDS})


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


def optimizer_type(name: str) -> str:
    """Return the type that a name such as ``ADAM_OPTIMIZER`` has. Raises AttributeError."""
    kind = name.removesuffix(_OPTIMIZER).replace("_", "").lower()
    known = dsconfig.optimizer_type(kind) if name.endswith(_OPTIMIZER) else None
    if known is not None and known.is_own:
        return kind
    raise AttributeError(name)


class DeepSpeedConfigModel(BaseModel):
    """A pydantic model that forbids unknown keys and omits "auto" unless ``strict``.

    A field whose ``json_schema_extra`` has ``deprecated`` logs a warning when it is set. Its value,
    passed through ``new_param_fn``, is assigned to ``new_param`` (dotted for an inner model),
    unless ``set_new_param`` is false; the warning contains ``deprecated_msg``.

    Raises pydantic's ValidationError, and ArgumentError (a ValueError and an AssertionError) if a
    deprecated field and its replacement are both set.
    """

    model_config = ConfigDict(
        validate_default=True,
        validate_assignment=True,
        use_enum_values=True,
        populate_by_name=True,
        extra="forbid",
        arbitrary_types_allowed=True,
        protected_namespaces=(),
    )

    def __init__(self, strict: bool = False, **data: Any) -> None:
        super().__init__(**{k: v for k, v in data.items() if strict or _is_set(k, v)})
        for name, field in type(self).model_fields.items():
            extra = field.json_schema_extra
            if (
                isinstance(extra, dict)
                and extra.get("deprecated")
                and name in self.model_fields_set
            ):
                self._replace(name, extra)

    def _replace(self, name: str, extra: Mapping[str, Any]) -> None:
        new: str = extra.get("new_param", "")
        parts = [f"{name} is deprecated", f"use {new}" if new else "", extra.get("deprecated_msg")]
        script_logger.warning(": ".join(filter(None, parts)))
        if not new or not extra.get("set_new_param", True):
            return
        value = extra.get("new_param_fn", lambda value: value)(getattr(self, name))
        *path, last = new.split(".")
        model: Any = self
        for field in path:
            model = getattr(model, field)
        if last in model.model_fields_set:
            raise ArgumentError(f"{name} and its replacement {new} are both set: remove {name}")
        setattr(model, last, value)


def _is_set(name: str, value: Any) -> bool:
    return not (isinstance(value, str) and value == "auto") or name == "replace_method"


def get_scalar_param(param_dict: Mapping[str, Any], param_name: str, default: Any) -> Any:
    """Return a value of a config, or ``default`` if it is missing."""
    return param_dict.get(param_name, default)


def dict_raise_error_on_duplicate_keys(ordered_pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Return the pairs as a dict; usable as ``object_pairs_hook`` of ``json.load``.

    Raises ValueError with the duplicate keys.
    """
    pairs = list(ordered_pairs)
    names = [name for name, _ in pairs]
    if duplicates := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"duplicate keys: {', '.join(duplicates)}")
    return dict(pairs)
