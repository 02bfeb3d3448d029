"""The loss scale as DeepSpeed's checkpoints contain it, so that scripts can read their files.

An engine's own loss scale is ``engine.loss_scale``.
"""

from typing import Any

import torch


class LossScalerBase:
    """A scale of the loss, stored in ``cur_scale``."""

    dynamic = False

    def __init__(self, cur_scale: float) -> None:
        self.cur_scale = cur_scale

    @property
    def loss_scale(self) -> float:
        return self.cur_scale

    def scale_loss(self, loss: Any) -> Any:
        return loss * self.loss_scale


class LossScaler(LossScalerBase):
    """A fixed scale."""

    def __init__(self, scale: float = 1) -> None:
        super().__init__(scale)


class DynamicLossScaler(LossScalerBase):
    """A scale that overflows lower; the engine that loads the checkpoint updates it."""

    dynamic = True

    def __init__(
        self,
        init_scale: float,
        scale_window: int,
        min_scale: float,
        delayed_shift: int,
        consecutive_hysteresis: bool,
        raise_error_at_min_scale: bool = True,
        dtype: torch.dtype = torch.half,
    ) -> None:
        super().__init__(init_scale)
        self.cur_iter, self.last_overflow_iter = 0, -1
        self.scale_factor, self.scale_window, self.min_scale = 2.0, scale_window, min_scale
        self.delayed_shift = self.cur_hysteresis = delayed_shift
        self.consecutive_hysteresis = consecutive_hysteresis
        self.raise_error_at_min_scale, self.dtype = raise_error_at_min_scale, dtype


__all__ = ["DynamicLossScaler", "LossScaler", "LossScalerBase"]
