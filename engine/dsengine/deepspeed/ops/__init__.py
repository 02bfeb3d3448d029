"""Optimizers under DeepSpeed's names: ``from dsengine.ops.adam import FusedAdam``."""

from dsengine.deepspeed.ops import adagrad, adam, lion

__all__ = ["adagrad", "adam", "lion"]
