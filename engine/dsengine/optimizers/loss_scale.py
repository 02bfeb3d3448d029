"""DeepSpeed's loss-scale state machines.

[Note: two state machines]
With ZeRO (stages 1 to 3) an overflow first uses up ``hysteresis`` steps before the scale is halved,
and an overflow at the minimum ends the run. At stage 0 every overflow halves the scale, never below
the minimum, and never ends the run. Both double the scale after ``window`` steps without overflow,
counted from one step after the last overflow. fp16 autocast has torch's own state machine.
"""

from abc import ABC, abstractmethod
from typing import Any


class LossScaleExhaustedError(RuntimeError):
    """An overflow at the smallest allowed loss scale: training has diverged."""


class LossScaler(ABC):
    """``scale`` multiplies the loss; ``update`` is called once per boundary."""

    dynamic: bool = True

    def __init__(self, scale: float) -> None:
        self.scale = scale

    @abstractmethod
    def update(self, overflow: bool) -> None:
        """Record one step."""

    def state_dict(self) -> dict[str, Any]:
        return dict(vars(self))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in vars(self):
            if name in state:
                setattr(self, name, state[name])


class StaticLossScale(LossScaler):
    """A fixed scale. Steps with an overflow are still skipped."""

    dynamic = False

    def update(self, overflow: bool) -> None:
        del overflow


class DynamicLossScale(LossScaler):
    """The state machine of stage 0."""

    def __init__(self, *, initial_power: int, window: int, minimum: float) -> None:
        super().__init__(float(2**initial_power))
        self.window = window
        self.minimum = minimum
        self.iteration = 0
        self.last_overflow = -1

    def update(self, overflow: bool) -> None:
        if overflow:
            self._shrink()
            self.last_overflow = self.iteration
        else:
            self._good_step()
        self.iteration += 1

    def _shrink(self) -> None:
        self.scale = max(self.scale / 2, self.minimum)

    def _good_step(self) -> None:
        clean_steps = self.iteration - self.last_overflow - 1
        if clean_steps > 0 and clean_steps % self.window == 0:
            self._grow()

    def _grow(self) -> None:
        self.scale *= 2


class AutocastLossScale(DynamicLossScale):
    """``torch.amp.GradScaler`` with its defaults, which DeepSpeed uses for fp16 autocast.

    The scale doubles after ``window`` consecutive steps without overflow, and has no minimum.
    """

    def __init__(self, window: int = 2000) -> None:
        super().__init__(initial_power=16, window=window, minimum=0.0)

    def _good_step(self) -> None:
        if self.iteration - self.last_overflow == self.window:
            self._grow()
            self.last_overflow = self.iteration  # counts the next window from here


class HysteresisLossScale(DynamicLossScale):
    """The state machine of stages 1 to 3, with hysteresis."""

    def __init__(
        self,
        *,
        initial_power: int,
        window: int,
        minimum: float,
        hysteresis: int,
        consecutive_hysteresis: bool,
    ) -> None:
        super().__init__(initial_power=initial_power, window=window, minimum=minimum)
        self.hysteresis = hysteresis
        self.hysteresis_left = hysteresis
        self.consecutive_hysteresis = consecutive_hysteresis

    def _shrink(self) -> None:
        if self.hysteresis != 1 and self.hysteresis_left != 1:
            self.hysteresis_left -= 1
            return
        if self.scale == self.minimum:
            raise LossScaleExhaustedError(
                f"loss scale is at its minimum ({self.minimum:g}) and the gradients still "
                "overflow: the run has diverged. Lower the learning rate, clip gradients, or "
                "train in bf16; fp16.min_loss_scale sets the minimum"
            )
        super()._shrink()

    def _good_step(self) -> None:
        if self.consecutive_hysteresis:
            self.hysteresis_left = self.hysteresis
        super()._good_step()

    def _grow(self) -> None:
        if not self.consecutive_hysteresis:
            self.hysteresis_left = self.hysteresis
        super()._grow()
