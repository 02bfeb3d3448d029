"""Exports from every sharding, loaded into every sharding."""

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from dsengine.checkpoints import CheckpointMismatchError, TrainingState
from dsengine.checkpoints.export.full_weights import full_state_dict, load_weights, save_weights
from dsengine.checkpoints.group import CheckpointGroup
from engine_storage.jobs.toy import ToyModel, bare, shard


def built(stage: int, seed: int) -> TrainingState:
    torch.manual_seed(seed)
    return TrainingState(module=bare(shard(ToyModel(), stage)))


def exported(directory: str) -> dict[str, Any]:
    """Return whether exports load equally, and the error for another model."""
    out, group = Path(directory), CheckpointGroup()
    result: dict[str, Any] = {"equal": [], "wrong": ""}
    torch.manual_seed(5)
    expected = ToyModel().state_dict()
    for stage in (0, 3):
        state = built(stage, seed=5)
        full = full_state_dict(state)
        if dist.get_rank() == 0:
            same = full.keys() == expected.keys()
            same = same and all(torch.equal(full[n], expected[n]) for n in expected)
            result["equal"].append(same)
        save_weights(state, out / f"stage{stage}", group=group, max_file_bytes=2000)
        save_weights(state, out / "bf16", group=group, dtype=torch.bfloat16)
        save_weights(state, out / "bin", "pytorch_model.bin", group=group)
        for reading_stage in (0, 3):
            other = built(reading_stage, seed=9)
            load_weights(other, out / f"stage{stage}", group=group)
            again = full_state_dict(other, rank0_only=False)
            result["equal"].append(all(torch.equal(again[n], expected[n]) for n in expected))
    wrong = TrainingState(module=torch.nn.Linear(3, 3))
    try:
        load_weights(wrong, out / "stage0", group=group)
    except CheckpointMismatchError as error:
        result["wrong"] = str(error)
    return result
