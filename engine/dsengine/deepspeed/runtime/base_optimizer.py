"""The classes of the optimizer that ``initialize`` returns."""

from typing import Any

from torch.optim import Optimizer
from torch.optim import Optimizer as DeepSpeedOptimizer


class StageClass(type):
    """Metaclass: instances are the optimizers stepped by an engine of the given ZeRO stages."""

    stages: tuple[int, ...]

    def __instancecheck__(cls, instance: Any) -> bool:
        is_optimizer = isinstance(instance, Optimizer)
        return is_optimizer and getattr(instance, "zero_stage", None) in cls.stages


class ZeROOptimizer(metaclass=StageClass):
    """The optimizers of engines of stages 1 to 3 are instances of this class."""

    stages = (1, 2, 3)


__all__ = ["DeepSpeedOptimizer", "StageClass", "ZeROOptimizer"]
