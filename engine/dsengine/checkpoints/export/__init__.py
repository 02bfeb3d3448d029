"""Import and export of full weights: safetensors as in Hugging Face, torch files, state dicts."""

from dsengine.checkpoints.export.full_weights import full_state_dict
from dsengine.checkpoints.export.load_weights import load_weights
from dsengine.checkpoints.export.save_weights import save_weights, write_weights

__all__ = ["full_state_dict", "load_weights", "save_weights", "write_weights"]
