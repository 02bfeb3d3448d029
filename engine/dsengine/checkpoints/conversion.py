"""A checkpoint in files of another kind, in one process and without an engine."""

from pathlib import Path

from dsengine.checkpoints.deepspeed_layout import read_whole, write_checkpoint
from dsengine.checkpoints.errors import CheckpointError
from dsengine.checkpoints.export import write_weights
from dsengine.optimizers.precision import DTYPES


def to_deepspeed(path: Path, output: Path, stage: int | None, ranks: int | None) -> str:
    """Write the checkpoint at ``path`` into DeepSpeed's files; return in words what they are for.

    Raises CheckpointError for what cannot be read, and for what has no place there.
    """
    saved = read_whole(path.parent, path.name)
    stage, ranks = saved.stage if stage is None else stage, ranks or saved.world_size
    written = write_checkpoint(saved, output, path.name, stage, ranks)
    return f"{written}: for DeepSpeed's load_checkpoint at stage {stage} on {ranks} ranks"


def to_safetensors(path: Path, output: Path, precision: str) -> str:
    """Write the weights of the checkpoint at ``path`` (``fp32``, ``fp16`` or ``bf16``).

    Raises CheckpointError for what cannot be read, and where there are such files already.
    """
    there = next(output.glob("*.safetensors"), None)
    if there is not None:
        raise CheckpointError(f"{there} exists: choose another folder, or remove it")
    saved = read_whole(path.parent, path.name, only_weights=True)
    write_weights(saved.weights, output, dtype=DTYPES[precision])
    return f"{output}: the weights in {precision}"
