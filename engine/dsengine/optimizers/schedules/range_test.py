"""LRRangeTest: a growing rate, to find the largest stable one."""

import math
from collections.abc import Sequence

from torch.optim import Optimizer

from dsengine.optimizers.schedules.base import Schedule, per_group, positive_integer


class LRRangeTest(Schedule):
    """``min * (1 + rate * intervals)``, with intervals of ``lr_range_test_step_size`` steps."""

    def __init__(
        self,
        optimizer: Optimizer,
        lr_range_test_min_lr: float | Sequence[float] = 1e-3,
        lr_range_test_step_size: int = 2000,
        lr_range_test_step_rate: float = 1.0,
        lr_range_test_staircase: bool = False,
        last_batch_iteration: int = -1,
    ) -> None:
        super().__init__(optimizer, last_batch_iteration)
        self.min_lrs = per_group(optimizer, lr_range_test_min_lr, "lr_range_test_min_lr")
        self.step_size = positive_integer(lr_range_test_step_size, "lr_range_test_step_size")
        self.step_rate = lr_range_test_step_rate
        self.staircase = lr_range_test_staircase
        if last_batch_iteration == -1:
            self.set_lr(self.min_lrs)

    def get_lr(self) -> list[float]:
        intervals = (self.last_batch_iteration + 1) / self.step_size
        if self.staircase:
            intervals = math.floor(intervals)
        growth = 1 + self.step_rate * intervals
        return [rate * growth for rate in self.min_lrs]
