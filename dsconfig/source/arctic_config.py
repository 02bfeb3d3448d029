"""ArcticTraining's YAML: the ds_config is a block of it, and the batch is beside that block.

``TrainerConfig.build_deepspeed_config`` (arctic_training/config/trainer.py, read) writes the batch
size, the precision of ``model.dtype`` and a few defaults into the block, and passes it on.
"""

import re
from collections.abc import Mapping
from typing import Any

from dsconfig.source.pointer import is_block

BLOCK = "deepspeed"
_FROM_BESIDE = {
    "train_micro_batch_size_per_gpu": "micro_batch_size",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
}
OVERWRITTEN = frozenset(f"/{key}" for key in _FROM_BESIDE)
"""Pointers of the block whose values are never read."""
_DEFAULTS: Mapping[str, Any] = {
    "steps_per_print": 10,
    "gradient_clipping": 1.0,
    "prescale_gradients": False,
    "wall_clock_breakdown": False,
}
_ZERO: Mapping[str, Any] = {
    "stage": 2,
    "stage3_param_persistence_threshold": 10_000,
    "stage3_max_live_parameters": 30_000_000,
    "stage3_prefetch_bucket_size": 30_000_000,
    "memory_efficient_linear": False,
}
_PRECISIONS = {"bf16": "bf16", "bfloat16": "bf16", "fp16": "fp16", "float16": "fp16"}
_NUMBER = re.compile(r"(-?\d+\.?\d?)(?:e(-?\d+)|(ki|mi|gi|ti|k|m|b|t))")
_UNITS = {
    **{unit: 1000**power for power, unit in enumerate(("k", "m", "b", "t"), 1)},
    **{unit: 1024**power for power, unit in enumerate(("ki", "mi", "gi", "ti"), 1)},
}


def is_arctic(content: Mapping[str, Any]) -> bool:
    """Return whether a YAML is one of ArcticTraining: a model and a ds_config block, beside the
    data or the batch size."""
    model, data = content.get("model"), content.get("data")
    has_data = is_block(data) and ("sources" in data or "type" in data)
    return (
        is_block(content.get(BLOCK))
        and (is_block(model) and "name_or_path" in model)
        and (has_data or "micro_batch_size" in content)
    )


def passed_config(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config that ArcticTraining passes to DeepSpeed.

    It writes a global batch size, which depends on the ranks; here the accumulation, which gives
    the same one.
    """
    config: dict[str, Any] = _with_numbers(content[BLOCK])
    config.pop("train_batch_size", None)  # overwritten
    for key, beside in _FROM_BESIDE.items():
        config[key] = _number(content.get(beside, 1))
    config.setdefault("zero_optimization", dict(_ZERO))
    dtype = str(content["model"].get("dtype", "bf16")).lower()
    precision = _PRECISIONS.get(dtype)
    if precision is not None and config.keys().isdisjoint(("bf16", "bfloat16", "fp16")):
        config[precision] = {"enabled": True}
    for key, value in _DEFAULTS.items():
        config.setdefault(key, value)
    return config


def pointers_beside(content: Mapping[str, Any]) -> dict[str, str]:
    """Return the pointer in the YAML of each written value of the config, by its pointer there."""
    found = {f"/{key}": f"/{beside}" for key, beside in _FROM_BESIDE.items() if beside in content}
    if "dtype" in content["model"]:
        found |= {f"/{block}": "/model/dtype" for block in ("bf16", "fp16")}
    return found


def _with_numbers(block: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _with_numbers(value) if is_block(value) else _number(value)
        for key, value in block.items()
    }


def _number(value: Any) -> Any:
    """Convert ``5e8``, ``2b`` and ``64mi``, which YAML reads as strings."""
    text = value.replace("_", "").lower().strip() if isinstance(value, str) else ""
    match = _NUMBER.fullmatch(text)
    if match is None:
        return value
    base, exponent, unit = match.groups()
    if exponent is not None and abs(int(exponent)) > 300:
        return value
    number = float(base) * (10.0 ** int(exponent) if exponent is not None else _UNITS[unit])
    return int(number) if number.is_integer() else number
