"""WarmupLR and its variants with linear or cosine decay."""

import math
import warnings
from collections.abc import Sequence

from torch.optim import Optimizer

from dsengine.optimizers.schedules.base import (
    Schedule,
    current_lrs,
    pairs,
    per_group,
    positive_integer,
)


class _Warmup(Schedule):
    """Base of schedules that warm up from 0 to 1 over ``warmup_num_steps``."""

    def __init__(
        self, optimizer: Optimizer, warmup_num_steps: int, warmup_type: str, last: int
    ) -> None:
        super().__init__(optimizer, last)
        self.warmup_num_steps = max(2, positive_integer(warmup_num_steps, "warmup_num_steps"))
        if warmup_type not in ("log", "linear"):
            warnings.warn(
                f"unknown warmup_type {warmup_type!r}: using 'log'; choose 'log' or 'linear'",
                stacklevel=3,
            )
            warmup_type = "log"
        self.warmup_type = warmup_type

    @property
    def is_warming_up(self) -> bool:
        return self.last_batch_iteration < self.warmup_num_steps

    def warmed_up(self) -> float:
        if self.warmup_type == "log":
            return math.log(self.last_batch_iteration + 1) / math.log(self.warmup_num_steps)
        return self.last_batch_iteration / self.warmup_num_steps


class WarmupLR(_Warmup):
    """Warm up from ``warmup_min_lr`` to ``warmup_max_lr`` (default: the optimizer's lr).

    Then constant. The first two steps use the minimum: the rate at construction, then the first of
    the warmup.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        warmup_min_lr: float | Sequence[float] = 0.0,
        warmup_max_lr: float | Sequence[float] | None = None,
        warmup_num_steps: int = 1000,
        warmup_type: str = "log",
        last_batch_iteration: int = -1,
    ) -> None:
        super().__init__(optimizer, warmup_num_steps, warmup_type, last_batch_iteration)
        if warmup_max_lr is None:
            warmup_max_lr = current_lrs(optimizer)
        self.min_lrs = per_group(optimizer, warmup_min_lr, "warmup_min_lr")
        self.max_lrs = per_group(optimizer, warmup_max_lr, "warmup_max_lr")
        if last_batch_iteration == -1:
            self.set_lr(self.get_lr())

    def get_lr(self) -> list[float]:
        if self.last_batch_iteration < 0:
            return list(self.min_lrs)
        share = self.share()
        return [low + (high - low) * share for low, high in pairs(self.min_lrs, self.max_lrs)]

    def share(self) -> float:
        """Return the position between minimum (0) and maximum (1)."""
        return self.warmed_up() if self.is_warming_up else 1.0


class WarmupDecayLR(WarmupLR):
    """WarmupLR, then linear decay to ``warmup_min_lr`` at ``total_num_steps``."""

    def __init__(
        self,
        optimizer: Optimizer,
        total_num_steps: int,
        warmup_min_lr: float | Sequence[float] = 0.0,
        warmup_max_lr: float | Sequence[float] = 0.001,
        warmup_num_steps: int = 1000,
        warmup_type: str = "log",
        last_batch_iteration: int = -1,
    ) -> None:
        self.total_num_steps = total_num_steps
        super().__init__(
            optimizer,
            warmup_min_lr,
            warmup_max_lr,
            warmup_num_steps,
            warmup_type,
            last_batch_iteration,
        )

    def share(self) -> float:
        if self.is_warming_up:
            return self.warmed_up()
        left = self.total_num_steps - self.last_batch_iteration
        return max(0.0, left / max(1.0, self.total_num_steps - self.warmup_num_steps))


class WarmupCosineLR(_Warmup):
    """Scale each group's lr by a warmup from ``warmup_min_ratio``, then by a cosine decay."""

    def __init__(
        self,
        optimizer: Optimizer,
        total_num_steps: int,
        warmup_min_ratio: float = 0.0,
        warmup_num_steps: int = 1000,
        cos_min_ratio: float = 0.0001,
        warmup_type: str = "log",
        last_batch_iteration: int = -1,
    ) -> None:
        super().__init__(optimizer, warmup_num_steps, warmup_type, last_batch_iteration)
        self.total_num_steps = total_num_steps
        self.warmup_min_ratio = warmup_min_ratio
        self.cos_min_ratio = cos_min_ratio
        self.base_lrs = current_lrs(optimizer)
        if last_batch_iteration == -1:
            self.set_lr(self.get_lr())

    def get_lr_ratio(self) -> float:
        """Return the factor at ``last_batch_iteration``."""
        if self.last_batch_iteration < 0:
            return 0.0
        if self.is_warming_up:
            low = self.warmup_min_ratio
            return low + (1.0 - low) * self.warmed_up()
        done = self.last_batch_iteration - self.warmup_num_steps + 1
        progress = min(1.0, done / max(1.0, self.total_num_steps - self.warmup_num_steps))
        wave = (1 + math.cos(math.pi * progress)) / 2
        return self.cos_min_ratio + (1.0 - self.cos_min_ratio) * wave

    def get_lr(self) -> list[float]:
        ratio = self.get_lr_ratio()
        return [rate * ratio for rate in self.base_lrs]
