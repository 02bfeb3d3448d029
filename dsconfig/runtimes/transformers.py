"""The Trainer of transformers, which fills some "auto" and hands the rest to DeepSpeed."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from dsconfig.runtimes.base import AutoFate, Runtime
from dsconfig.runtimes.deepspeed import BATCH_KEYS, fate_of_auto
from dsconfig.schema.version import NEWEST, Version

FILLED = frozenset(
    {
        *((key,) for key in (*BATCH_KEYS, "gradient_clipping")),
        *(("optimizer", "params", name) for name in ("lr", "betas", "eps", "weight_decay")),
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
        ("zero_optimization", "reduce_bucket_size"),
        ("zero_optimization", "stage3_prefetch_bucket_size"),
        ("zero_optimization", "stage3_param_persistence_threshold"),
    }
)
"""Keys for which the Trainer has a value (the last two at stage 3 only)."""


@dataclass(frozen=True, kw_only=True)
class Transformers(Runtime):
    """``entry``: "config" for HfTrainerDeepSpeedConfig alone, "trainer" for the whole chain."""

    name = "transformers"
    reads_hjson: ClassVar[bool] = False
    entry: str = "trainer"

    def on_auto(self, path: tuple[str, ...], config: Mapping[str, Any]) -> AutoFate:
        if path in FILLED:
            return AutoFate.FILLED
        return fate_of_auto(path, config, self.version)


def transformers(version: Version = NEWEST, *, entry: str = "trainer") -> Transformers:
    """The Trainer on a DeepSpeed release."""
    return Transformers(version=version, entry=entry)
