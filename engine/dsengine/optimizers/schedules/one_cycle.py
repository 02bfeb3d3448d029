"""OneCycle: one cycle of the rate, an inverse cycle of the momentum, then decay."""

import math
import warnings
from collections.abc import Sequence

from torch.optim import Optimizer

from dsengine.optimizers.schedules.base import Schedule, assign_lr, pairs, per_group

SECOND_BETA = 0.99
"""betas[1] while the momentum is cycled."""


class OneCycle(Schedule):
    """Linear rise over ``cycle_first_step_size`` steps, then linear fall.

    A stair count above 0 divides a slope into that many stairs. After the cycle the rate decays by
    ``decay_lr_rate`` per ``decay_step_size`` steps; if either is 0, it stays at the minimum.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        cycle_min_lr: float | Sequence[float],
        cycle_max_lr: float | Sequence[float],
        decay_lr_rate: float = 0.0,
        cycle_first_step_size: int = 2000,
        cycle_second_step_size: int | None = None,
        cycle_first_stair_count: int = 0,
        cycle_second_stair_count: int | None = None,
        decay_step_size: int = 0,
        cycle_momentum: bool = True,
        cycle_min_mom: float = 0.8,
        cycle_max_mom: float = 0.9,
        decay_mom_rate: float = 0.0,
        last_batch_iteration: int = -1,
    ) -> None:
        super().__init__(optimizer, last_batch_iteration)
        self.rise = float(cycle_first_step_size)
        self.fall = self.rise if cycle_second_step_size is None else float(cycle_second_step_size)
        if self.rise <= 0:
            raise ValueError(f"cycle_first_step_size must be positive, got {self.rise}")
        if self.fall < 0:
            raise ValueError(f"cycle_second_step_size must be non-negative, got {self.fall}")
        self.rise_stairs = cycle_first_stair_count
        self.fall_stairs = (
            cycle_first_stair_count
            if cycle_second_stair_count is None
            else cycle_second_stair_count
        )
        self.decay_step_size = decay_step_size
        self.decay_lr_rate = decay_lr_rate
        self.decay_mom_rate = decay_mom_rate
        self.min_lrs = per_group(optimizer, cycle_min_lr, "cycle_min_lr")
        self.max_lrs = per_group(optimizer, cycle_max_lr, "cycle_max_lr")
        self.min_moms = per_group(optimizer, cycle_min_mom, "cycle_min_mom")
        self.max_moms = per_group(optimizer, cycle_max_mom, "cycle_max_mom")
        self.cycle_momentum = cycle_momentum and _has_betas(optimizer)
        if last_batch_iteration == -1:
            self._begin()

    def _begin(self) -> None:
        """Set the minima; they do not count as rates set by a step."""
        for group, rate in zip(self.optimizer.param_groups, self.min_lrs, strict=True):
            assign_lr(group, rate)
        if self.cycle_momentum:
            self._set_betas([(momentum, SECOND_BETA) for momentum in self.min_moms])

    @property
    def is_cycling(self) -> bool:
        return self.last_batch_iteration < self.rise + self.fall

    @property
    def step_ratio(self) -> float:
        """The share of the cycle in which the rate rises."""
        return self.rise / (self.rise + self.fall)

    def height(self) -> float:
        """Return the position between minimum (0) and maximum (1) in the cycle."""
        length = self.rise + self.fall
        iteration = self.last_batch_iteration + 1
        position = iteration / length - math.floor(iteration / length)
        top = self.step_ratio
        rising = position <= top
        stairs = self.rise_stairs if rising else self.fall_stairs
        if stairs > 0:
            return self._stair(iteration % length, stairs)
        return position / top if rising else (position - 1) / (top - 1)

    def _stair(self, iteration: float, stairs: int) -> float:
        """Use the integer step count: a float position may be just below a stair."""
        if iteration <= self.rise:
            position = iteration * stairs / self.rise
        else:
            position = (self.rise + self.fall - iteration) * stairs / self.fall
        return math.floor(position) / stairs

    def decay_intervals(self) -> float:
        if math.isclose(self.decay_step_size, 0):
            return 0.0
        return (self.last_batch_iteration - self.rise - self.fall + 1) / self.decay_step_size

    def get_lr(self) -> list[float]:
        if self.is_cycling:
            height = self.height()
            return [low + (high - low) * height for low, high in pairs(self.min_lrs, self.max_lrs)]
        decay = 1 + self.decay_lr_rate * self.decay_intervals()
        return [low / decay for low in self.min_lrs]

    def get_mom(self) -> list[tuple[float, float]] | None:
        """Return the betas of each group, or None if the momentum is not cycled."""
        if not self.cycle_momentum:
            return None
        return [(momentum, SECOND_BETA) for momentum in self._momenta()]

    def _momenta(self) -> list[float]:
        if self.is_cycling:
            height = self.height()
            return [h - (h - low) * height for low, h in pairs(self.min_moms, self.max_moms)]
        growth = 1 + self.decay_mom_rate * self.decay_intervals()
        return [high * growth for high in self.max_moms]

    def step(self, last_batch_iteration: int | None = None) -> None:
        super().step(last_batch_iteration)
        betas = self.get_mom()
        if betas is not None:
            self._set_betas(betas)

    def _set_betas(self, betas: Sequence[tuple[float, float]]) -> None:
        for group, pair in zip(self.optimizer.param_groups, betas, strict=True):
            group["betas"] = pair


def _has_betas(optimizer: Optimizer) -> bool:
    if "betas" in optimizer.defaults:
        return True
    warnings.warn(
        f"OneCycle does not cycle the momentum: {type(optimizer).__name__} has no betas",
        stacklevel=4,
    )
    return False
