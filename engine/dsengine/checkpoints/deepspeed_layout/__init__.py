"""DeepSpeed's own checkpoint directories: read at stages 0 to 3, written from any other."""

from dsengine.checkpoints.deepspeed_layout.files import is_deepspeed_directory
from dsengine.checkpoints.deepspeed_layout.load import load_deepspeed_checkpoint
from dsengine.checkpoints.deepspeed_layout.read import read_checkpoint, read_whole
from dsengine.checkpoints.deepspeed_layout.whole import WholeCheckpoint
from dsengine.checkpoints.deepspeed_layout.write import write_checkpoint

__all__ = [
    "WholeCheckpoint",
    "is_deepspeed_directory",
    "load_deepspeed_checkpoint",
    "read_checkpoint",
    "read_whole",
    "write_checkpoint",
]
