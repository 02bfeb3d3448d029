"""DeepSpeed's own checkpoint directories: read at stages 0 to 3, whole weights written."""

from dsengine.checkpoints.deepspeed_layout.files import is_deepspeed_directory
from dsengine.checkpoints.deepspeed_layout.load import load_deepspeed_checkpoint
from dsengine.checkpoints.deepspeed_layout.read import DeepSpeedCheckpoint, read_checkpoint
from dsengine.checkpoints.deepspeed_layout.write import write_model_states, write_whole_weights

__all__ = [
    "DeepSpeedCheckpoint",
    "is_deepspeed_directory",
    "load_deepspeed_checkpoint",
    "read_checkpoint",
    "write_model_states",
    "write_whole_weights",
]
