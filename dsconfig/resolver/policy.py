"""Policy of dsengine, in order: precision, stage and offload, buckets, batch, other keys.

Each step uses the results of earlier ones. Precision comes first because all byte counts depend on
it; the optimizer type precedes memory because its states determine it.
"""

from collections.abc import Mapping
from typing import Any

from dsconfig.lazy_imports import lazy_imports
from dsconfig.resolver.draft import Draft
from dsconfig.runtimes.degrees import with_executed_degrees
from dsconfig.schema import paths
from dsconfig.schema.paths import KeyPath

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

AUTO_BLOCKS: Mapping[KeyPath, Mapping[str, Any]] = {
    paths.FP16: {"enabled": "auto"},
    paths.BF16: {"enabled": "auto"},
    paths.OPTIMIZER: {"type": "auto", "params": "auto"},
    paths.OPTIMIZER_PARAMS: {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"},
    paths.SCHEDULER: {"type": "auto", "params": "auto"},
    paths.ZERO: {
        "stage": "auto",
        "offload_optimizer": "auto",
        "offload_param": "auto",
        "overlap_comm": "auto",
        "reduce_bucket_size": "auto",
    },
    paths.OFFLOAD_OPTIMIZER: {"device": "auto"},
    paths.OFFLOAD_PARAM: {"device": "auto"},
    paths.ACTIVATION_CHECKPOINTING: {"partition_activations": "auto", "cpu_checkpointing": "auto"},
    paths.DATA_TYPES: {"grad_accum_dtype": "auto"},
}
"""Keys of blocks that are "auto" as a whole; each key is then resolved by its rule."""
STAGE_PATHS = (paths.STAGE, paths.OPTIMIZER_DEVICE, paths.PARAM_DEVICE)


def fill(draft: Draft) -> None:
    """Resolve every "auto" value and the batch triple."""
    draft.facts = with_executed_degrees(draft.facts, draft.config)
    _expand(draft)
    precision.fill(draft)
    optimizer.fill(draft)
    scheduler.fill(draft)
    if draft.is_auto(paths.SEQUENCE_PARALLEL):
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
            place = draft.given(path.parent) if path.parent else draft.config
            place[path.name] = dict(keys)


_FASTEST = "the fastest per sample, with the largest micro batch that fits"

POLICY: Mapping[KeyPath, str] = {
    paths.GLOBAL_BATCH: "micro batch x accumulation x data-parallel ranks",
    paths.MICRO_BATCH: "largest that fits and divides the global batch",
    paths.ACCUMULATION: "global batch / (micro batch x data-parallel ranks)",
    paths.SEQUENCE_PARALLEL: "1 if the model fits without offload, else " + _FASTEST,
    paths.GRADIENT_CLIPPING: "max_grad_norm of the training run, else 1.0",
    paths.COMMUNICATION_DTYPE: "training precision",
    paths.SEQUENCE_COMMUNICATION_DTYPE: "training precision",
    paths.FP16_ENABLED: "precision of the training run; else on if the GPU does not support bf16",
    paths.BF16_ENABLED: "precision of the training run; else on if the GPU supports bf16",
    paths.OPTIMIZER_TYPE: "AdamW",
    paths.LEARNING_RATE: "peak of the schedule, else learning rate of the training run",
    paths.OPTIMIZER_PARAMS / "betas": "betas of the training run, else the optimizer's default",
    paths.OPTIMIZER_PARAMS / "eps": "epsilon of the run, else the optimizer's default",
    paths.OPTIMIZER_PARAMS / "weight_decay": "weight decay of the training run, else 0",
    paths.SCHEDULER_TYPE: "WarmupDecayLR if the number of training steps is known, else WarmupLR",
    paths.MIN_LR: "0",
    paths.MAX_LR: "learning rate",
    paths.WARMUP_STEPS: "warmup steps of the run, else 1000 (at most a tenth)",
    paths.TOTAL_STEPS: "training steps",
    paths.STAGE: _FASTEST,
    paths.OPTIMIZER_DEVICE: _FASTEST,
    paths.PARAM_DEVICE: _FASTEST,
    paths.OVERLAP_COMM: "true at stages 1 to 3 with several ranks, else false",
    paths.REDUCE_BUCKET: "hidden_size^2, capped by the 4.5x rule",
    paths.GATHER_BUCKET: "hidden_size^2, capped by the 4.5x rule",
    paths.PREFETCH_BUCKET: "9 x hidden_size^2 // 10",
    paths.PERSISTENCE_THRESHOLD: "10 x hidden_size",
    paths.SUB_GROUP_SIZE: "1e8 with optimizer offload to NVMe, else 1e9",
    paths.GRAD_ACCUM_DTYPE: "fp32 with bf16, else the dtype of the model",
    paths.ACTIVATION_CHECKPOINTING
    / "partition_activations": "true with several tensor-parallel ranks",
}
"""Other keys get their default."""
