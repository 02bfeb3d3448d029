"""What transformers and accelerate put in the place of "auto", in words, for people."""

from collections.abc import Mapping

_SQUARE = "hidden_size squared"
_PREFETCH = "0.9 times hidden_size squared, rounded down"
_PERSISTENCE = "10 times hidden_size"
_OPTIMIZER, _SCHEDULER = "optimizer.params", "scheduler.params"
_ZERO = "zero_optimization"

TRANSFORMERS: Mapping[str, str] = {
    "train_batch_size": "ranks x per_device_train_batch_size x gradient_accumulation_steps",
    "train_micro_batch_size_per_gpu": "per_device_train_batch_size",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
    "gradient_clipping": "max_grad_norm",
    "fp16.enabled": "true with fp16 or fp16_full_eval",
    "bf16.enabled": "true with bf16 or bf16_full_eval",
    f"{_OPTIMIZER}.lr": "learning_rate",
    f"{_OPTIMIZER}.betas": "[adam_beta1, adam_beta2]",
    f"{_OPTIMIZER}.eps": "adam_epsilon",
    f"{_OPTIMIZER}.weight_decay": "weight_decay",
    f"{_SCHEDULER}.warmup_min_lr": "0",
    f"{_SCHEDULER}.warmup_max_lr": "learning_rate",
    f"{_SCHEDULER}.warmup_num_steps": "the warm-up steps, at least 1",
    f"{_SCHEDULER}.total_num_steps": "the training steps",
    f"{_ZERO}.reduce_bucket_size": _SQUARE,
    f"{_ZERO}.stage3_prefetch_bucket_size": f"{_PREFETCH}; at stage 3 only",
    f"{_ZERO}.stage3_param_persistence_threshold": f"{_PERSISTENCE}; at stage 3 only",
}
"""Names are those of TrainingArguments and of the model's config."""

_PLUGIN = "the plugin's value, else the environment's, else"

ACCELERATE: Mapping[str, str] = {
    "train_batch_size": "micro batch x accumulation x processes, divided by the sequence ranks",
    "train_micro_batch_size_per_gpu": "the smallest batch size of the loaders given to prepare",
    "gradient_accumulation_steps": f"{_PLUGIN} the Accelerator's own",
    "gradient_clipping": f"{_PLUGIN} 1.0",
    "steps_per_print": "infinity, whatever the file says",
    "fp16.enabled": "true with mixed_precision fp16",
    "bf16.enabled": "true with mixed_precision bf16 or fp8",
    f"{_OPTIMIZER}.lr": "lr of DummyOptim",
    f"{_OPTIMIZER}.weight_decay": "weight_decay of DummyOptim",
    f"{_SCHEDULER}.warmup_min_lr": "0",
    f"{_SCHEDULER}.warmup_max_lr": "lr of the schedule's optimizer",
    f"{_SCHEDULER}.warmup_num_steps": "warmup_num_steps of DummyScheduler, at least 1",
    f"{_SCHEDULER}.total_num_steps": "total_num_steps of DummyScheduler, divided by processes",
    f"{_ZERO}.stage": f"{_PLUGIN} 2",
    f"{_ZERO}.offload_optimizer.device": f"{_PLUGIN} none",
    f"{_ZERO}.offload_optimizer.nvme_path": f"{_PLUGIN} the word none",
    f"{_ZERO}.offload_param.device": f"{_PLUGIN} none",
    f"{_ZERO}.offload_param.nvme_path": f"{_PLUGIN} the word none",
    f"{_ZERO}.stage3_gather_16bit_weights_on_model_save": f"{_PLUGIN} false",
    f"{_ZERO}.reduce_bucket_size": _SQUARE,
    f"{_ZERO}.stage3_prefetch_bucket_size": f"{_PREFETCH}, at any stage",
    f"{_ZERO}.stage3_param_persistence_threshold": f"{_PERSISTENCE}, at any stage",
}

FILLED_WITH: Mapping[str, Mapping[str, str]] = {
    "transformers": TRANSFORMERS,
    "accelerate": ACCELERATE,
}
