"""Values that transformers and accelerate fill in for "auto", by path.

Both go by the path only: they set ``optimizer.params.betas`` for every optimizer. Hence this table
is separate from the key declarations, where such a path has a dozen fields.
"""

from collections.abc import Mapping
from typing import NamedTuple

from dsconfig.schema.paths import OPTIMIZER_PARAMS, SCHEDULER_PARAMS, ZERO


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

FILLED: Mapping[str, Filled] = {
    "train_batch_size": Filled(
        "ranks x per_device_train_batch_size x gradient_accumulation_steps",
        "micro batch x accumulation x processes / sequence-parallel degree",
    ),
    "train_micro_batch_size_per_gpu": Filled(
        "per_device_train_batch_size", "smallest batch size of the data loaders passed to prepare"
    ),
    "gradient_accumulation_steps": Filled("gradient_accumulation_steps", f"{_PLUGIN} Accelerator"),
    "gradient_clipping": Filled("max_grad_norm", f"{_PLUGIN} 1.0"),
    "steps_per_print": Filled(None, "infinity, overriding any value"),
    "fp16.enabled": Filled("true with fp16 or fp16_full_eval", "true with mixed_precision=fp16"),
    "bf16.enabled": Filled(
        "true with bf16 or bf16_full_eval", "true with mixed_precision=bf16 or fp8"
    ),
    f"{OPTIMIZER_PARAMS}.lr": Filled("learning_rate", "lr of DummyOptim"),
    f"{OPTIMIZER_PARAMS}.betas": Filled("[adam_beta1, adam_beta2]", None),
    f"{OPTIMIZER_PARAMS}.eps": Filled("adam_epsilon", None),
    f"{OPTIMIZER_PARAMS}.weight_decay": Filled("weight_decay", "weight_decay of DummyOptim"),
    f"{SCHEDULER_PARAMS}.warmup_min_lr": Filled("0", "0"),
    f"{SCHEDULER_PARAMS}.warmup_max_lr": Filled("learning_rate", "lr of the scheduler's optimizer"),
    f"{SCHEDULER_PARAMS}.warmup_num_steps": Filled(
        "warmup steps, at least 1", "warmup_num_steps of DummyScheduler, at least 1"
    ),
    f"{SCHEDULER_PARAMS}.total_num_steps": Filled(
        "training steps", "total_num_steps of DummyScheduler / processes"
    ),
    f"{ZERO}.stage": Filled(None, f"{_PLUGIN} 2"),
    f"{ZERO}.offload_optimizer.device": Filled(None, f"{_PLUGIN} none"),
    f"{ZERO}.offload_optimizer.nvme_path": Filled(None, f"{_PLUGIN} the string none"),
    f"{ZERO}.offload_param.device": Filled(None, f"{_PLUGIN} none"),
    f"{ZERO}.offload_param.nvme_path": Filled(None, f"{_PLUGIN} the string none"),
    f"{ZERO}.stage3_gather_16bit_weights_on_model_save": Filled(None, f"{_PLUGIN} false"),
    f"{ZERO}.reduce_bucket_size": Filled(_SQUARE, _SQUARE),
    f"{ZERO}.stage3_prefetch_bucket_size": Filled(
        f"0.9 x {_SQUARE}, rounded down; only at stage 3",
        f"0.9 x {_SQUARE}, rounded down; at all stages",
    ),
    f"{ZERO}.stage3_param_persistence_threshold": Filled(
        f"{_WIDTH}; only at stage 3", f"{_WIDTH}; at all stages"
    ),
}
"""By dotted path."""

BY_TRANSFORMERS = {path: by.transformers for path, by in FILLED.items() if by.transformers}
BY_ACCELERATE = {path: by.accelerate for path, by in FILLED.items() if by.accelerate}
