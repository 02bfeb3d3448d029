"""The classes of what ``initialize`` returns as the optimizer: torch's own."""

from typing import Any

from torch.optim import Optimizer
from torch.optim import Optimizer as DeepSpeedOptimizer


class _OfZero(type):
    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, Optimizer) and getattr(instance, "zero_stage", 0) > 0


class ZeROOptimizer(metaclass=_OfZero):
    """An optimizer that an engine of stages 1 to 3 steps is an instance of this."""


__all__ = ["DeepSpeedOptimizer", "ZeROOptimizer"]
