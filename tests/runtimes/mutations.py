"""Random configs: a complete one with some keys removed or set to unusual values."""

import copy
import random
from collections.abc import Iterator
from typing import Any

AUTO = "auto"
COMPLETE: dict[str, Any] = {
    "train_batch_size": AUTO,
    "train_micro_batch_size_per_gpu": AUTO,
    "gradient_accumulation_steps": AUTO,
    "gradient_clipping": AUTO,
    "fp16": {"enabled": AUTO},
    "bf16": {"enabled": AUTO},
    "zero_optimization": {
        "stage": 2,
        "reduce_bucket_size": AUTO,
        "stage3_prefetch_bucket_size": AUTO,
        "stage3_param_persistence_threshold": AUTO,
    },
    "optimizer": {"type": "AdamW", "params": {"lr": AUTO, "weight_decay": AUTO}},
    "scheduler": {
        "type": "WarmupDecayLR",
        "params": {
            "warmup_min_lr": AUTO,
            "warmup_max_lr": AUTO,
            "warmup_num_steps": AUTO,
            "total_num_steps": AUTO,
        },
    },
}
ODD: tuple[Any, ...] = (
    *(AUTO, None, True, False, "true", 0, 1, 2, 3, 4, 4.0, "4", 999, 5e-5, "5e-5", 0.5),
    *([AUTO, AUTO], [0.9, 0.999], [], {}),
)
ADDED: tuple[tuple[str, Any], ...] = (
    ("zero_optimization.offload_optimizer", {"device": AUTO, "nvme_path": AUTO}),
    ("zero_optimization.offload_optimizer", AUTO),
    ("zero_optimization.offload_param", {"device": AUTO}),
    ("zero_optimization.stage3_gather_16bit_weights_on_model_save", AUTO),
    ("zero_optimization.overlap_comm", AUTO),
    ("zero_optimization.stage", AUTO),
    ("zero_optimization.stage", 3),
    ("steps_per_print", AUTO),
    ("fp16.loss_scale", AUTO),
    ("tensor_parallel", {"autotp_size": AUTO}),
    ("data_types", {"keep_in_fp32_modules": AUTO}),
)
MODELS: tuple[dict[str, Any] | None, ...] = (
    {"hidden_size": 64},
    {"hidden_sizes": [32, 16]},
    {},
    None,
    {"text_config": {"hidden_size": 128}},
    {"hidden_size": None},
    {"hidden_size": 64.0},
    {"hidden_sizes": []},
)


def mutated(pick: random.Random) -> dict[str, Any]:
    """Return a copy with up to three keys removed or replaced, and sometimes one added."""
    config = copy.deepcopy(COMPLETE)
    for _ in range(pick.choice((0, 0, 1, 1, 2, 3))):
        path = pick.choice(list(paths(config)) or ["gone"])
        if pick.random() < 0.4:
            place(config, path).pop(path.split(".")[-1], None)
        else:
            place(config, path)[path.split(".")[-1]] = copy.deepcopy(pick.choice(ODD))
    if pick.random() < 0.4:
        path, value = pick.choice(ADDED)
        block = place(config, path)
        block[path.split(".")[-1]] = copy.deepcopy(value)
    return config


def paths(config: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in config.items():
        yield f"{prefix}{key}"
        if isinstance(value, dict):
            yield from paths(value, f"{prefix}{key}.")


def place(config: dict[str, Any], path: str) -> dict[str, Any]:
    """Return the block that contains a path; a temporary one if there is no block."""
    for part in path.split(".")[:-1]:
        inner = config.get(part)
        if not isinstance(inner, dict):
            return {}
        config = inner
    return config
