"""Optimizers under DeepSpeed's names: ``from dsengine.ops.adam import FusedAdam``."""

from dsengine.ops import adagrad, adam, lion

__all__ = ["adagrad", "adam", "lion"]
