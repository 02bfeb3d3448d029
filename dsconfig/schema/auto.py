"""Who puts a value in the place of "auto", and which, in words.

Both Hugging Face programs go by the path alone: they fill ``optimizer.params.betas`` whatever the
optimizer is. So this stands by path, and not with fields of which a path may have a dozen.
"""

from collections.abc import Mapping
from typing import NamedTuple

from dsconfig.schema.paths import OPTIMIZER_PARAMS, SCHEDULER_PARAMS, ZERO


class Filled(NamedTuple):
    """What a program writes; None where it leaves the word alone."""

    transformers: str | None
    """By TrainingArguments and the model's config (``HfTrainerDeepSpeedConfig``)."""
    accelerate: str | None
    """By DeepSpeedPlugin, Accelerator and the objects given to ``prepare``."""

    @property
    def programs(self) -> tuple[str, ...]:
        return tuple(name for name, words in self._asdict().items() if words)


_SQUARE, _WIDTH = "hidden_size squared", "10 times hidden_size"
_PLUGIN = "the plugin's value, else the environment's, else"

FILLED: Mapping[str, Filled] = {
    "train_batch_size": Filled(
        "ranks x per_device_train_batch_size x gradient_accumulation_steps",
        "micro batch x accumulation x processes, divided by the sequence ranks",
    ),
    "train_micro_batch_size_per_gpu": Filled(
        "per_device_train_batch_size", "the smallest batch size of the loaders given to prepare"
    ),
    "gradient_accumulation_steps": Filled(
        "gradient_accumulation_steps", f"{_PLUGIN} the Accelerator's own"
    ),
    "gradient_clipping": Filled("max_grad_norm", f"{_PLUGIN} 1.0"),
    "steps_per_print": Filled(None, "infinity, whatever the file says"),
    "fp16.enabled": Filled("true with fp16 or fp16_full_eval", "true with mixed_precision fp16"),
    "bf16.enabled": Filled(
        "true with bf16 or bf16_full_eval", "true with mixed_precision bf16 or fp8"
    ),
    f"{OPTIMIZER_PARAMS}.lr": Filled("learning_rate", "lr of DummyOptim"),
    f"{OPTIMIZER_PARAMS}.betas": Filled("[adam_beta1, adam_beta2]", None),
    f"{OPTIMIZER_PARAMS}.eps": Filled("adam_epsilon", None),
    f"{OPTIMIZER_PARAMS}.weight_decay": Filled("weight_decay", "weight_decay of DummyOptim"),
    f"{SCHEDULER_PARAMS}.warmup_min_lr": Filled("0", "0"),
    f"{SCHEDULER_PARAMS}.warmup_max_lr": Filled("learning_rate", "lr of the schedule's optimizer"),
    f"{SCHEDULER_PARAMS}.warmup_num_steps": Filled(
        "the warm-up steps, at least 1", "warmup_num_steps of DummyScheduler, at least 1"
    ),
    f"{SCHEDULER_PARAMS}.total_num_steps": Filled(
        "the training steps", "total_num_steps of DummyScheduler, divided by processes"
    ),
    f"{ZERO}.stage": Filled(None, f"{_PLUGIN} 2"),
    f"{ZERO}.offload_optimizer.device": Filled(None, f"{_PLUGIN} none"),
    f"{ZERO}.offload_optimizer.nvme_path": Filled(None, f"{_PLUGIN} the word none"),
    f"{ZERO}.offload_param.device": Filled(None, f"{_PLUGIN} none"),
    f"{ZERO}.offload_param.nvme_path": Filled(None, f"{_PLUGIN} the word none"),
    f"{ZERO}.stage3_gather_16bit_weights_on_model_save": Filled(None, f"{_PLUGIN} false"),
    f"{ZERO}.reduce_bucket_size": Filled(_SQUARE, _SQUARE),
    f"{ZERO}.stage3_prefetch_bucket_size": Filled(
        f"0.9 times {_SQUARE}, rounded down; at stage 3 only",
        f"0.9 times {_SQUARE}, rounded down, at any stage",
    ),
    f"{ZERO}.stage3_param_persistence_threshold": Filled(
        f"{_WIDTH}; at stage 3 only", f"{_WIDTH}, at any stage"
    ),
}
"""By dotted path."""

BY_TRANSFORMERS = {path: by.transformers for path, by in FILLED.items() if by.transformers}
BY_ACCELERATE = {path: by.accelerate for path, by in FILLED.items() if by.accelerate}
