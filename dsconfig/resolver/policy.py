"""Our own policy, in its order: precision, stage and offload, buckets, batch, the rest.

Each step sees what the steps before it decided. Precision comes first because every byte
count depends on it; the optimizer's type before memory because its states do.
"""

from collections.abc import Mapping
from typing import Any

from dsconfig.lazy_imports import lazy_imports
from dsconfig.resolver.draft import Draft
from dsconfig.schema.paths import OPTIMIZER_DEVICE, PARAM_DEVICE, STAGE

with lazy_imports():
    from dsconfig.resolver import batch, buckets, optimizer, other_keys, precision, scheduler, zero

AUTO_BLOCKS: Mapping[str, Mapping[str, Any]] = {
    "fp16": {"enabled": "auto"},
    "bf16": {"enabled": "auto"},
    "optimizer": {"type": "auto", "params": "auto"},
    "optimizer.params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"},
    "scheduler": {"type": "auto", "params": "auto"},
    "zero_optimization": {
        "stage": "auto",
        "offload_optimizer": "auto",
        "offload_param": "auto",
        "overlap_comm": "auto",
        "reduce_bucket_size": "auto",
    },
    "zero_optimization.offload_optimizer": {"device": "auto"},
    "zero_optimization.offload_param": {"device": "auto"},
    "activation_checkpointing": {"partition_activations": "auto", "cpu_checkpointing": "auto"},
    "data_types": {"grad_accum_dtype": "auto"},
}
"""Whole blocks that are "auto": written out, so that each key in them is settled by its rule."""
STAGE_PATHS = (STAGE, OPTIMIZER_DEVICE, PARAM_DEVICE)


def fill(draft: Draft) -> None:
    """Settle everything that is "auto", and the batch triple."""
    _expand(draft)
    precision.fill(draft)
    optimizer.fill(draft)
    scheduler.fill(draft)
    # Only where there is something to choose: it brings the estimator along.
    if any(draft.is_auto(path) for path in STAGE_PATHS):
        zero.fill(draft)
    buckets.fill(draft)
    batch.fill(draft)
    other_keys.fill(draft)


def _expand(draft: Draft) -> None:
    """Replace each such block by its keys; outer blocks first, as the table has them."""
    for path, keys in AUTO_BLOCKS.items():
        if draft.is_auto(path):
            *outer, name = path.split(".")
            place = draft.value(".".join(outer)) if outer else draft.config
            place[name] = dict(keys)


_ZERO = "zero_optimization"
_PLACE = "the fastest per sample, each with the largest micro batch that fits"

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
    "optimizer.params.betas": "betas of the run, else the default of the optimizer",
    "optimizer.params.eps": "epsilon of the run, else the default of the optimizer",
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
