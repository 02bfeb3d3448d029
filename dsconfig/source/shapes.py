"""What tells a ds_config from another mapping."""

from collections.abc import Iterable

TELLING_KEYS = frozenset(
    (
        "train_batch_size",
        "train_micro_batch_size_per_gpu",
        "gradient_accumulation_steps",
        "zero_optimization",
        "zero_allow_untested_optimizer",
        "gradient_clipping",
        "steps_per_print",
        "wall_clock_breakdown",
        "activation_checkpointing",
        "fp16",
        "bf16",
        "flops_profiler",
        "communication_data_type",
        "prescale_gradients",
    )
)
"""Top-level keys that other programs' configs seldom have."""


def telling(keys: Iterable[object]) -> int:
    """How many of the keys speak for a ds_config."""
    return sum(isinstance(key, str) and key in TELLING_KEYS for key in keys)
