"""Former names that DeepSpeed still understands, and what they stand for."""

from collections.abc import Mapping
from typing import Any, cast

from dsconfig.schema.declare import TRUE_WORDS

ZERO = "zero_optimization"
SWITCHES = {"offload_optimizer": "cpu_offload", "offload_param": "cpu_offload_param"}
"""The switch that once stood for a block with the device cpu, by the name of the block."""
RENAMED = {"stage3_gather_16bit_weights_on_model_save": "stage3_gather_fp16_weights_on_model_save"}
"""The former name of a key of zero_optimization, by its name."""


def bf16_block(config: Mapping[str, Any]) -> str:
    """The name of the block that counts: bfloat16 is read only where bf16 is absent or null."""
    return "bf16" if config.get("bf16") is not None or "bfloat16" not in config else "bfloat16"


def with_current_names(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config with today's names; what is written under both is left as it is."""
    found = dict(config)
    if bf16_block(config) == "bfloat16":
        found["bf16"] = found.pop("bfloat16")
    zero: Any = config.get(ZERO)
    if isinstance(zero, bool):  # the form before there were stages
        found[ZERO] = {"stage": int(zero)}
    elif isinstance(zero, dict):
        found[ZERO] = inside = dict(cast(Mapping[str, Any], zero))
        for block, switch in SWITCHES.items():
            value = inside.get(switch)
            on = value.lower() in TRUE_WORDS if isinstance(value, str) else value is True
            if on and block not in inside:
                del inside[switch]
                inside[block] = {"device": "cpu"}
        for name, old in RENAMED.items():
            if old in inside and name not in inside:
                inside[name] = inside.pop(old)
    return found
