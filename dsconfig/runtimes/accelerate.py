"""accelerate, which fills some "auto" and refuses every other."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from dsconfig.runtimes.base import AutoFate, Runtime
from dsconfig.runtimes.deepspeed import BATCH_KEYS
from dsconfig.schema.version import NEWEST, Version

FILLED = frozenset(
    {
        *((key,) for key in (*BATCH_KEYS, "gradient_clipping")),
        *(("optimizer", "params", name) for name in ("lr", "weight_decay")),
        *(
            ("scheduler", "params", name)
            for name in (
                "warmup_min_lr",
                "warmup_max_lr",
                "warmup_num_steps",
                "total_num_steps",
            )
        ),
        ("fp16", "enabled"),
        ("bf16", "enabled"),
        ("zero_optimization", "stage"),
        ("zero_optimization", "reduce_bucket_size"),
        ("zero_optimization", "stage3_prefetch_bucket_size"),
        ("zero_optimization", "stage3_param_persistence_threshold"),
        ("zero_optimization", "stage3_gather_16bit_weights_on_model_save"),
        ("steps_per_print",),
        *(
            ("zero_optimization", block, name)
            for block in ("offload_param", "offload_optimizer")
            for name in ("device", "nvme_path")
        ),
    }
)
"""Keys for which accelerate has a value; any other "auto" outside lists is a ValueError."""


@dataclass(frozen=True, kw_only=True)
class Accelerate(Runtime):
    name = "accelerate"
    reads_hjson: ClassVar[bool] = False

    def on_auto(self, path: tuple[str, ...], config: Mapping[str, Any]) -> AutoFate:
        return AutoFate.FILLED if path in FILLED else AutoFate.REFUSED_LATE


def accelerate(version: Version = NEWEST) -> Accelerate:
    """accelerate on a DeepSpeed release."""
    return Accelerate(version=version)
