"""Old names that DeepSpeed still reads, and their current names."""

from collections.abc import Mapping
from typing import Any, cast

from dsconfig.schema.declare import TRUE_WORDS
from dsconfig.schema.paths import ZERO

SWITCHES = {"offload_optimizer": "cpu_offload", "offload_param": "cpu_offload_param"}
"""Old switch for a block with device cpu, by block name."""
RENAMED = {"stage3_gather_16bit_weights_on_model_save": "stage3_gather_fp16_weights_on_model_save"}
"""Old name of a zero_optimization key, by current name."""


def bf16_block(config: Mapping[str, Any]) -> str:
    """Return the block that is read: bfloat16 only if bf16 is missing or null."""
    return "bf16" if config.get("bf16") is not None or "bfloat16" not in config else "bfloat16"


def with_current_names(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config with current names; keys set under both names are kept."""
    renamed = dict(config)
    if bf16_block(config) == "bfloat16":
        renamed["bf16"] = renamed.pop("bfloat16")
    zero: Any = config.get(ZERO.name)
    if isinstance(zero, bool):  # the form before stages existed
        renamed[ZERO.name] = {"stage": int(zero)}
    elif isinstance(zero, dict):
        renamed[ZERO.name] = inside = dict(cast(Mapping[str, Any], zero))
        for block, switch in SWITCHES.items():
            value = inside.get(switch)
            on = value.lower() in TRUE_WORDS if isinstance(value, str) else value is True
            if on and block not in inside:
                del inside[switch]
                inside[block] = {"device": "cpu"}
        for name, old in RENAMED.items():
            if old in inside and name not in inside:
                inside[name] = inside.pop(old)
    return renamed
