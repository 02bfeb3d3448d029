"""Policy of dsengine, in order: precision, stage and offload, buckets, batch, other keys.

Each step uses the results of earlier ones. Precision comes first because all byte counts depend on
it; the optimizer type precedes memory because its states determine it.
"""

from collections.abc import Mapping
from typing import Any

from dsconfig.lazy_imports import lazy_imports
from dsconfig.resolver.draft import Draft
from dsconfig.runtimes.degrees import with_executed_degrees
from dsconfig.schema.paths import OPTIMIZER_DEVICE, PARAM_DEVICE, SEQUENCE_PARALLEL, STAGE

with lazy_imports():
    from dsconfig.resolver import (
        batch,
        buckets,
        degrees,
        optimizer,
        other_keys,
        precision,
        scheduler,
        zero,
    )

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
"""Keys of blocks that are "auto" as a whole; each key is then resolved by its rule."""
STAGE_PATHS = (STAGE, OPTIMIZER_DEVICE, PARAM_DEVICE)


def fill(draft: Draft) -> None:
    """Resolve every "auto" value and the batch triple."""
    draft.facts = with_executed_degrees(draft.facts, draft.config)
    _expand(draft)
    precision.fill(draft)
    optimizer.fill(draft)
    scheduler.fill(draft)
    if draft.is_auto(SEQUENCE_PARALLEL):
        degrees.fill(draft)
    # Only if there is a choice: it imports the estimator.
    if any(draft.is_auto(path) for path in STAGE_PATHS):
        zero.fill(draft)
    buckets.fill(draft)
    batch.fill(draft)
    other_keys.fill(draft)


def _expand(draft: Draft) -> None:
    """Replace each "auto" block by its keys, outer blocks first."""
    for path, keys in AUTO_BLOCKS.items():
        if draft.is_auto(path):
            *outer, name = path.split(".")
            place = draft.value(".".join(outer)) if outer else draft.config
            place[name] = dict(keys)


_ZERO = "zero_optimization"
_FASTEST = "the fastest per sample, with the largest micro batch that fits"

POLICY: Mapping[str, str] = {
    "train_batch_size": "micro batch x accumulation x data-parallel ranks",
    "train_micro_batch_size_per_gpu": "largest that fits and divides the global batch",
    "gradient_accumulation_steps": "global batch / (micro batch x data-parallel ranks)",
    "sequence_parallel_size": "1 if the model fits without offload, else " + _FASTEST,
    "gradient_clipping": "max_grad_norm of the training run, else 1.0",
    "communication_data_type": "training precision",
    "seq_parallel_communication_data_type": "training precision",
    "fp16.enabled": "precision of the training run; else on if the GPU does not support bf16",
    "bf16.enabled": "precision of the training run; else on if the GPU supports bf16",
    "optimizer.type": "AdamW",
    "optimizer.params.lr": "peak of the schedule, else learning rate of the training run",
    "optimizer.params.betas": "betas of the training run, else the optimizer's default",
    "optimizer.params.eps": "epsilon of the run, else the optimizer's default",
    "optimizer.params.weight_decay": "weight decay of the training run, else 0",
    "scheduler.type": "WarmupDecayLR if the number of training steps is known, else WarmupLR",
    "scheduler.params.warmup_min_lr": "0",
    "scheduler.params.warmup_max_lr": "learning rate",
    "scheduler.params.warmup_num_steps": "warmup steps of the run, else 1000 (at most a tenth)",
    "scheduler.params.total_num_steps": "training steps",
    f"{_ZERO}.stage": _FASTEST,
    f"{_ZERO}.offload_optimizer.device": _FASTEST,
    f"{_ZERO}.offload_param.device": _FASTEST,
    f"{_ZERO}.overlap_comm": "true at stages 1 to 3 with several ranks, else false",
    f"{_ZERO}.reduce_bucket_size": "hidden_size^2, capped by the 4.5x rule",
    f"{_ZERO}.allgather_bucket_size": "hidden_size^2, capped by the 4.5x rule",
    f"{_ZERO}.stage3_prefetch_bucket_size": "9 x hidden_size^2 // 10",
    f"{_ZERO}.stage3_param_persistence_threshold": "10 x hidden_size",
    f"{_ZERO}.sub_group_size": "1e8 with optimizer offload to NVMe, else 1e9",
    "data_types.grad_accum_dtype": "fp32 with bf16, else the dtype of the model",
    "activation_checkpointing.partition_activations": "true with several tensor-parallel ranks",
}
"""By path; other keys get their default."""
