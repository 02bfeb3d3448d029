"""DeepSpeed's checkpoint directories: reading at stages 0 to 3, and writing."""

from dsengine.checkpoints.deepspeed_layout.files import is_deepspeed_directory
from dsengine.checkpoints.deepspeed_layout.full_checkpoint import FullCheckpoint
from dsengine.checkpoints.deepspeed_layout.load import load_deepspeed_checkpoint
from dsengine.checkpoints.deepspeed_layout.read import read_checkpoint, read_full
from dsengine.checkpoints.deepspeed_layout.write import write_checkpoint

__all__ = [
    "FullCheckpoint",
    "is_deepspeed_directory",
    "load_deepspeed_checkpoint",
    "read_checkpoint",
    "read_full",
    "write_checkpoint",
]
