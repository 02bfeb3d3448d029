"""Whole blocks that are "auto": written out, so that each key in them is settled by its rule."""

from collections.abc import Mapping
from typing import Any

from dsconfig.resolver.draft import Draft

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


def expand(draft: Draft) -> None:
    """Replace each such block by its keys; outer blocks first, as the table has them."""
    for path, keys in AUTO_BLOCKS.items():
        if draft.is_auto(path):
            *outer, name = path.split(".")
            place = draft.value(".".join(outer)) if outer else draft.config
            place[name] = dict(keys)
