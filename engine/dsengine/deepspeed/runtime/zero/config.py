"""Blocks of a ds_config as objects: what programs ask for a default or a former name.

They are views of the one table of keys. A value that DeepSpeed refuses raises pydantic's
ValidationError, and a key on its way out is a line of the log, as there.
"""

from collections.abc import Mapping
from enum import IntEnum
from typing import Any, ClassVar, Self

import dsconfig
from dsengine.observation.printing import script_logger


class ZeroStageEnum(IntEnum):
    """Stages of ZeRO by what the ranks share."""

    disabled = 0
    optimizer_states = 1
    gradients = 2
    weights = 3
    max_stage = 3


class ConfigBlock:
    """A block of a config: every field is an attribute, named as DeepSpeed's model names it."""

    path: ClassVar[tuple[str, ...]]
    inner: ClassVar[Mapping[str, "type[ConfigBlock]"]] = {}
    """Blocks in it, by field."""

    def __init__(self, **values: Any) -> None:
        top, *below = self.path
        content: dict[str, Any] = values
        for name in reversed(below):
            content = {"stage": 3, name: content}  # at which all of it counts
        _check(type(self).__name__, self.path, content)
        found: dict[str, Any] = dsconfig.block_values(top, content)
        for name in below:
            found = found[name]
        self._take(found)

    @classmethod
    def holding(cls, values: Mapping[str, Any]) -> Self:
        """Return the block of these values, which are judged and complete."""
        block = object.__new__(cls)
        block._take(values)
        return block

    def _take(self, found: Mapping[str, Any]) -> None:
        for name, value in found.items():
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
        """Whether states are read ahead or written behind."""
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

    def _take(self, found: Mapping[str, Any]) -> None:
        super()._take(found)
        self.stage = ZeroStageEnum(self.stage)
        self.leaf_module = self.leaf_module or DeepSpeedZeroLeafModuleConfig()


def _check(title: str, path: tuple[str, ...], content: dict[str, Any]) -> None:
    from pydantic_core import InitErrorDetails, PydanticCustomError, ValidationError

    report = dsconfig.validate({"train_batch_size": 1, path[0]: content}, runtime="deepspeed")
    prefix = "/" + "/".join(path)
    of_block = [d for d in report.diagnostics if (d.pointer or "").startswith(prefix)]
    refused = [each for each in of_block if each.effect == "refused"]
    errors = [
        InitErrorDetails(
            type=PydanticCustomError("ds_config", "{why}", {"why": each.message}),
            loc=tuple(str(each.pointer).removeprefix(prefix).strip("/").split("/")),
            input=content,
        )
        for each in refused
    ]
    if errors:
        raise ValidationError.from_exception_data(title, errors)
    for each in of_block:
        if each.effect == "deprecated":
            script_logger.warning(each.message)


__all__ = [
    "DeepSpeedZeroConfig",
    "DeepSpeedZeroLeafModuleConfig",
    "DeepSpeedZeroOffloadOptimizerConfig",
    "DeepSpeedZeroOffloadParamConfig",
    "ZeroStageEnum",
]
