"""Whole weights in and out: safetensors in the Hugging Face layout, torch files, state dicts."""

from dsengine.export.load_weights import load_weights
from dsengine.export.save_weights import save_weights
from dsengine.export.whole import whole_state_dict

__all__ = ["load_weights", "save_weights", "whole_state_dict"]
