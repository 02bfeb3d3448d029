"""Optimizers with DeepSpeed's names: ``from dsengine.ops.adam import FusedAdam``."""

from dsengine.deepspeed.ops import adagrad, adam, lion, op_builder

__compatible_ops__ = {name: op.is_compatible() for name, op in op_builder.ALL_OPS.items()}
"""By kernel name, whether its function is supported."""

__all__ = ["adagrad", "adam", "lion", "op_builder"]
