"""The class of what ``initialize`` returns as the optimizer: torch's own."""

from torch.optim import Optimizer as DeepSpeedOptimizer

__all__ = ["DeepSpeedOptimizer"]
