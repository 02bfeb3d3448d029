"""The monitors' blocks of a ds_config as objects."""

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
    """The four blocks, each with its defaults where it is not given."""

    tensorboard: TensorBoardConfig
    wandb: WandbConfig
    comet: CometConfig
    csv_monitor: CSVConfig

    def __init__(self, **blocks: Mapping[str, Any]) -> None:
        for name, kind in _KINDS.items():
            setattr(self, name, kind(**blocks.pop(name, {})))
        if blocks:
            raise ValueError(f"no such monitor: {', '.join(blocks)}; there are {', '.join(BLOCKS)}")

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> "DeepSpeedMonitorConfig":
        """Return those of a whole config whose values are judged and complete."""
        found = object.__new__(cls)
        for name, kind in _KINDS.items():
            setattr(found, name, kind.holding(config[name]))
        return found

    @property
    def enabled(self) -> bool:
        """Whether one of them is on."""
        return any(getattr(self, name).enabled for name in _KINDS)


def get_monitor_config(param_dict: Mapping[str, Any]) -> DeepSpeedMonitorConfig:
    """Return the monitors' blocks of a config."""
    return DeepSpeedMonitorConfig(**{name: param_dict.get(name, {}) for name in _KINDS})


__all__ = [
    "CSVConfig",
    "CometConfig",
    "DeepSpeedMonitorConfig",
    "TensorBoardConfig",
    "WandbConfig",
    "get_monitor_config",
]
