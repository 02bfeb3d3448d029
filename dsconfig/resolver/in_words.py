"""What our own policy puts in the place of "auto", in words, for people."""

from collections.abc import Mapping

_ZERO = "zero_optimization"
_PLACE = "the cheapest in expected step time among those that fit micro batch 1"

POLICY: Mapping[str, str] = {
    "train_batch_size": "micro batch x accumulation x data-parallel ranks",
    "train_micro_batch_size_per_gpu": "the largest that fits and divides the global batch",
    "gradient_accumulation_steps": "global batch / (micro batch x data-parallel ranks)",
    "gradient_clipping": "max_grad_norm of the run, else 1.0",
    "communication_data_type": "the training precision",
    "seq_parallel_communication_data_type": "the training precision",
    "fp16.enabled": "the run's precision; else fp16 where the card has no bf16",
    "bf16.enabled": "the run's precision; else bf16 where the card has it",
    "optimizer.type": "AdamW",
    "optimizer.params.lr": "peak of the schedule, else learning rate of the run",
    "optimizer.params.betas": "betas of the run, else [0.9, 0.999]",
    "optimizer.params.eps": "epsilon of the run, else 1e-8",
    "optimizer.params.weight_decay": "weight decay of the run, else 0",
    "scheduler.type": "WarmupDecayLR where the training steps are known, else WarmupLR",
    "scheduler.params.warmup_min_lr": "0",
    "scheduler.params.warmup_max_lr": "the learning rate",
    "scheduler.params.warmup_num_steps": "warm-up steps of the run, else 1000 or a tenth of it",
    "scheduler.params.total_num_steps": "training steps of the run",
    f"{_ZERO}.stage": _PLACE,
    f"{_ZERO}.offload_optimizer.device": _PLACE,
    f"{_ZERO}.offload_param.device": _PLACE,
    f"{_ZERO}.overlap_comm": "true from stage 1 on with several ranks, else false",
    f"{_ZERO}.reduce_bucket_size": "hidden_size squared, less where the 4.5x rule caps it",
    f"{_ZERO}.allgather_bucket_size": "hidden_size squared, less where the 4.5x rule caps it",
    f"{_ZERO}.stage3_prefetch_bucket_size": "9 x hidden_size squared // 10",
    f"{_ZERO}.stage3_param_persistence_threshold": "10 x hidden_size",
    f"{_ZERO}.sub_group_size": "1e8 where states go to NVMe, else 1e9",
    "data_types.grad_accum_dtype": "fp32 with bf16, else the format of the model",
    "activation_checkpointing.partition_activations": "true on several tensor-parallel ranks",
}
"""Everywhere else the default of the key is taken."""
