"""Whole weights in and out: safetensors in the Hugging Face layout, torch files, state dicts."""

from dsengine.checkpoints.export.load_weights import load_weights
from dsengine.checkpoints.export.save_weights import save_weights, write_weights
from dsengine.checkpoints.export.whole import whole_state_dict

__all__ = ["load_weights", "save_weights", "whole_state_dict", "write_weights"]
