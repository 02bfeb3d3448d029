"""The classes of what ``initialize`` returns as the optimizer: torch's own."""

from typing import Any

from torch.optim import Optimizer
from torch.optim import Optimizer as DeepSpeedOptimizer


class OfStages(type):
    """The type of classes that what an engine steps is an instance of, by its stage of ZeRO."""

    stages: tuple[int, ...]

    def __instancecheck__(cls, instance: Any) -> bool:
        is_optimizer = isinstance(instance, Optimizer)
        return is_optimizer and getattr(instance, "zero_stage", None) in cls.stages


class ZeROOptimizer(metaclass=OfStages):
    """An optimizer that an engine of stages 1 to 3 steps is an instance of this."""

    stages = (1, 2, 3)


__all__ = ["DeepSpeedOptimizer", "OfStages", "ZeROOptimizer"]
