"""The monitor blocks of a ds_config as objects."""

from collections.abc import Mapping
from typing import Any

from dsengine.deepspeed.runtime.zero.config import ConfigBlock
from dsengine.observation.monitors import BLOCKS


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


__all__ = [
    "CSVConfig",
    "CometConfig",
    "DeepSpeedMonitorConfig",
    "TensorBoardConfig",
    "WandbConfig",
    "get_monitor_config",
]
