"""Whole weights in the files that DeepSpeed writes and other tools read."""

from os import PathLike
from pathlib import Path

import torch

from dsengine.checkpoints.directory import write_latest
from dsengine.checkpoints.export.save_weights import save_weights
from dsengine.checkpoints.export.whole import whole_state_dict
from dsengine.checkpoints.group import CheckpointGroup
from dsengine.checkpoints.state import TrainingState

MODEL_STATES = "mp_rank_00_model_states.pt"
WHOLE_WEIGHTS = "pytorch_model.bin"


def write_whole_weights(
    state: TrainingState,
    save_dir: str | PathLike[str],
    *,
    group: CheckpointGroup,
    dtype: torch.dtype | None = None,
) -> None:
    """Write ``pytorch_model.bin``. Collective; rank 0 writes."""
    save_weights(state, save_dir, WHOLE_WEIGHTS, group=group, dtype=dtype, max_file_bytes=2**62)


def write_model_states(
    state: TrainingState,
    save_dir: str | PathLike[str],
    tag: str,
    *,
    group: CheckpointGroup,
    dtype: torch.dtype | None = None,
) -> None:
    """Write ``{tag}/mp_rank_00_model_states.pt`` and ``latest``, as DeepSpeed does at stage 0.

    It holds weights, schedule and counters, no optimizer: DeepSpeed reads it with
    ``load_optimizer_states=False``. Collective; rank 0 writes.
    """
    whole = whole_state_dict(state, dtype=dtype)
    counters = state.parts["counters"].state_dict() if "counters" in state.parts else {}
    scheduler = state.parts.get("lr_scheduler")
    content = {
        "module": whole,
        "buffer_names": [name for name, _ in state.module.named_buffers()],
        "optimizer": None,
        "param_shapes": None,
        "frozen_param_shapes": None,
        "shared_params": None,
        "frozen_param_fragments": None,
        "lr_scheduler": scheduler.state_dict() if scheduler is not None else None,
        "data_sampler": None,
        "random_ltd": None,
        "sparse_tensor_module_names": [],
        "skipped_steps": counters.get("skipped_steps", 0),
        "global_steps": counters.get("global_steps", 0),
        "global_samples": counters.get("global_samples", 0),
        "dp_world_size": group.world_size,
        "mp_world_size": 1,
        "ds_config": {},
        "ds_version": "0.19.8",
    }
    root = Path(save_dir)
    group.run_on_coordinator(lambda: _write(root, tag, content), f"saving {root / tag}")


def _write(root: Path, tag: str, content: dict[str, object]) -> None:
    directory = root / tag
    directory.mkdir(parents=True, exist_ok=True)
    aside = directory / f".{MODEL_STATES}.writing"
    torch.save(content, aside)
    aside.replace(directory / MODEL_STATES)
    write_latest(root, tag)
