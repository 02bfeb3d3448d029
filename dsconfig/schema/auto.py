"""Values that transformers and accelerate fill in for "auto", by path.

Both go by the path only: they set ``optimizer.params.betas`` for every optimizer. Hence this table
is separate from the key declarations, where such a path has a dozen fields.
"""

from collections.abc import Mapping
from typing import NamedTuple

from dsconfig.schema import paths
from dsconfig.schema.paths import KeyPath


class Filled(NamedTuple):
    """Value that each program fills in; None if it does not replace "auto"."""

    transformers: str | None
    """From TrainingArguments and the model config (``HfTrainerDeepSpeedConfig``)."""
    accelerate: str | None
    """From DeepSpeedPlugin, Accelerator and the arguments of ``prepare``."""

    @property
    def programs(self) -> tuple[str, ...]:
        return tuple(name for name, value in self._asdict().items() if value)


_SQUARE, _WIDTH = "hidden_size^2", "10 x hidden_size"
_PLUGIN = "DeepSpeedPlugin, else environment, else"

FILLED: Mapping[KeyPath, Filled] = {
    paths.GLOBAL_BATCH: Filled(
        "ranks x per_device_train_batch_size x gradient_accumulation_steps",
        "micro batch x accumulation x processes / sequence-parallel degree",
    ),
    paths.MICRO_BATCH: Filled(
        "per_device_train_batch_size", "smallest batch size of the data loaders passed to prepare"
    ),
    paths.ACCUMULATION: Filled("gradient_accumulation_steps", f"{_PLUGIN} Accelerator"),
    paths.GRADIENT_CLIPPING: Filled("max_grad_norm", f"{_PLUGIN} 1.0"),
    paths.STEPS_PER_PRINT: Filled(None, "infinity, overriding any value"),
    paths.FP16_ENABLED: Filled(
        "true with fp16 or fp16_full_eval", "true with mixed_precision=fp16"
    ),
    paths.BF16_ENABLED: Filled(
        "true with bf16 or bf16_full_eval", "true with mixed_precision=bf16 or fp8"
    ),
    paths.LEARNING_RATE: Filled("learning_rate", "lr of DummyOptim"),
    paths.OPTIMIZER_PARAMS / "betas": Filled("[adam_beta1, adam_beta2]", None),
    paths.OPTIMIZER_PARAMS / "eps": Filled("adam_epsilon", None),
    paths.OPTIMIZER_PARAMS / "weight_decay": Filled("weight_decay", "weight_decay of DummyOptim"),
    paths.MIN_LR: Filled("0", "0"),
    paths.MAX_LR: Filled("learning_rate", "lr of the scheduler's optimizer"),
    paths.WARMUP_STEPS: Filled(
        "warmup steps, at least 1", "warmup_num_steps of DummyScheduler, at least 1"
    ),
    paths.TOTAL_STEPS: Filled("training steps", "total_num_steps of DummyScheduler / processes"),
    paths.STAGE: Filled(None, f"{_PLUGIN} 2"),
    paths.OPTIMIZER_DEVICE: Filled(None, f"{_PLUGIN} none"),
    paths.OPTIMIZER_NVME: Filled(None, f"{_PLUGIN} the string none"),
    paths.PARAM_DEVICE: Filled(None, f"{_PLUGIN} none"),
    paths.PARAM_NVME: Filled(None, f"{_PLUGIN} the string none"),
    paths.GATHERED_ON_SAVE: Filled(None, f"{_PLUGIN} false"),
    paths.REDUCE_BUCKET: Filled(_SQUARE, _SQUARE),
    paths.PREFETCH_BUCKET: Filled(
        f"0.9 x {_SQUARE}, rounded down; only at stage 3",
        f"0.9 x {_SQUARE}, rounded down; at all stages",
    ),
    paths.PERSISTENCE_THRESHOLD: Filled(f"{_WIDTH}; only at stage 3", f"{_WIDTH}; at all stages"),
}

BY_TRANSFORMERS = {path: by.transformers for path, by in FILLED.items() if by.transformers}
BY_ACCELERATE = {path: by.accelerate for path, by in FILLED.items() if by.accelerate}
