"""Entries about the saved run that ``load_checkpoint`` adds to the client state, as DeepSpeed does.

A script may pass a loaded client state to the next ``save_checkpoint``; these entries are dropped
there, because they would be outdated.
"""

from collections.abc import Mapping
from typing import Any

from torch import Size

from dsengine.checkpoints.manifest import Manifest
from dsengine.release import DEEPSPEED

ADDED = (
    "buffer_names",
    "param_shapes",
    "shared_params",
    "global_samples",
    "checkpoint_parallel_dimensions",
    "ds_config",
    "ds_version",
)


def without_run_state(client_state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the script's own entries."""
    return {key: value for key, value in client_state.items() if key not in ADDED}


def run_state(manifest: Manifest, small: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries for a checkpoint of dsengine; ``small``: its small states."""
    is_sharded = manifest.description.get("stage", 0) > 0
    groups = [group["names"] for group in (small["optimizer"] or {}).get("groups", [])]
    return {
        "buffer_names": list(manifest.buffers),
        "param_shapes": [
            {name: Size(manifest.weights[name]) for name in names if name in manifest.weights}
            for names in groups
        ]
        if is_sharded
        else None,
        "shared_params": dict(manifest.tied) if is_sharded else None,
        "global_samples": small["parts"].get("counters", {}).get("global_samples", 0),
        "checkpoint_parallel_dimensions": {"pp_degree": 1, "tp_degree": 1},
        "ds_config": dict(manifest.description.get("config") or {}),
        "ds_version": DEEPSPEED,
    }
