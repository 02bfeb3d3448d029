"""Blocks of a ds_config as objects, with defaults and former names of keys.

They are views of the one table of keys. As in DeepSpeed, an invalid value raises pydantic's
ValidationError, and a deprecated key is logged.
"""

from collections.abc import Mapping
from enum import IntEnum
from typing import Any, ClassVar, Self

import dsconfig
from dsengine.observation.printing import script_logger


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


__all__ = [
    "DeepSpeedZeroConfig",
    "DeepSpeedZeroLeafModuleConfig",
    "DeepSpeedZeroOffloadOptimizerConfig",
    "DeepSpeedZeroOffloadParamConfig",
    "ZeroStageEnum",
]
