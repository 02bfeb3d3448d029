"""Optimizers under DeepSpeed's names: ``from dsengine.ops.adam import FusedAdam``."""

from dsengine.deepspeed.ops import adagrad, adam, lion, op_builder

__compatible_ops__ = {name: each.is_compatible() for name, each in op_builder.ALL_OPS.items()}
"""By name of a kernel, whether what it does is offered."""

__all__ = ["adagrad", "adam", "lion", "op_builder"]
