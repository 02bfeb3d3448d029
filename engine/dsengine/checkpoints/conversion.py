"""Conversion of a checkpoint to other file formats, in one process and without an engine."""

from pathlib import Path

from dsengine.checkpoints.deepspeed_layout.read import read_full
from dsengine.checkpoints.deepspeed_layout.write import write_checkpoint
from dsengine.checkpoints.export.full_weights import write_weights
from dsengine.checkpoints.group import CheckpointError
from dsengine.optimizers.precision import DTYPES


def to_deepspeed(path: Path, output: Path, stage: int | None, ranks: int | None) -> str:
    """Convert the checkpoint at ``path`` to DeepSpeed's files and return a summary.

    Raises CheckpointError if it cannot be read or cannot be represented in the target format.
    """
    saved = read_full(path.parent, path.name)
    stage, ranks = saved.stage if stage is None else stage, ranks or saved.world_size
    written = write_checkpoint(saved, output, path.name, stage, ranks)
    return f"{written}: for DeepSpeed's load_checkpoint at stage {stage} on {ranks} ranks"


def to_safetensors(path: Path, output: Path, precision: str) -> str:
    """Convert the weights of the checkpoint at ``path`` (``fp32``, ``fp16`` or ``bf16``).

    Raises CheckpointError if it cannot be read, and if ``output`` already has such files.
    """
    existing = next(output.glob("*.safetensors"), None)
    if existing is not None:
        raise CheckpointError(f"{existing} exists: choose another folder, or remove it")
    saved = read_full(path.parent, path.name, only_weights=True)
    write_weights(saved.weights, output, dtype=DTYPES[precision])
    return f"{output}: the weights in {precision}"
