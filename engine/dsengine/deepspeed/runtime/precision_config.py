"""The precision blocks of a ds_config as objects."""

from collections.abc import Mapping
from typing import Any

from dsengine.deepspeed.runtime.zero.config import ConfigBlock


class DeepSpeedFP16Config(ConfigBlock):
    path = ("fp16",)


class DeepSpeedBF16Config(ConfigBlock):
    path = ("bf16",)


def get_bfloat16_config(param_dict: Mapping[str, Any]) -> DeepSpeedBF16Config:
    """Return the bf16 block of a config, also if it has its former name."""
    return DeepSpeedBF16Config(**(param_dict.get("bf16") or param_dict.get("bfloat16") or {}))


__all__ = ["DeepSpeedBF16Config", "DeepSpeedFP16Config", "get_bfloat16_config"]
