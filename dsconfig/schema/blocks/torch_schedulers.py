"""Arguments of torch.optim.lr_scheduler schedulers, which DeepSpeed passes through."""

from typing import Annotated, Literal

from dsconfig.schema.declare import REQUIRED, Block, key
from dsconfig.schema.markers import NotInJson
from dsconfig.schema.types import Function, Integer, Number, OrList, Positive

Schedules = Annotated[str, NotInJson("list of schedules")]


class TorchSchedule(Block, arguments=True):
    """Arguments of most torch schedulers."""

    last_epoch: Integer = key(
        -1, "Last step when resuming; -1: start from the beginning.", unit="steps"
    )


class ConstantLR(TorchSchedule):
    """Reduced learning rate for the first steps."""

    factor: Number = key(1 / 3, "Factor of the learning rate.")
    total_iters: Integer = key(5, "Number of steps.", unit="steps")


class LinearLR(TorchSchedule):
    """Linear interpolation between two factors."""

    start_factor: Number = key(1 / 3, "Initial factor.")
    end_factor: Number = key(1.0, "Final factor.")
    total_iters: Integer = key(5, "Number of steps.", unit="steps")


class PolynomialLR(TorchSchedule):
    """Polynomial decay to zero."""

    total_iters: Integer = key(5, "Number of steps.", unit="steps")
    power: Number = key(1.0, "Degree.")


class ExponentialLR(TorchSchedule):
    """Decay by a factor per step."""

    gamma: Number = key(REQUIRED, "Factor per step.")


class StepLR(TorchSchedule):
    """Decay by a factor every step_size steps."""

    step_size: Integer = key(REQUIRED, "Steps between two decays.", unit="steps")
    gamma: Number = key(0.1, "Decay factor.")


class MultiStepLR(TorchSchedule):
    """Decay by a factor at given steps."""

    milestones: list[Integer] = key(
        REQUIRED, "Steps at which the learning rate decays.", unit="steps"
    )
    gamma: Number = key(0.1, "Decay factor.")


class CosineAnnealingLR(TorchSchedule):
    """Cosine annealing."""

    T_max: Integer = key(REQUIRED, "Steps until the minimum learning rate.", unit="steps")
    eta_min: Number = key(0.0, "Minimum learning rate.")


class CosineAnnealingWarmRestarts(TorchSchedule):
    """Cosine annealing with warm restarts."""

    T_0: Positive = key(REQUIRED, "Steps to the first restart.", unit="steps")
    T_mult: Positive = key(1, "Growth factor of the period.")
    eta_min: Number = key(0.0, "Minimum learning rate.")


class CyclicLR(TorchSchedule):
    """Cyclical learning rate."""

    base_lr: OrList[Number] = key(REQUIRED, "Minimum learning rate.")
    max_lr: OrList[Number] = key(REQUIRED, "Maximum learning rate.")
    step_size_up: Integer = key(2000, "Length of the increasing phase.", unit="steps")
    step_size_down: Integer | None = key(None, "Length of the decreasing phase.", unit="steps")
    mode: Literal["triangular", "triangular2", "exp_range"] = key(
        "triangular", "Shape of the cycle."
    )
    gamma: Number = key(1.0, "Factor of mode exp_range.")
    scale_fn: Function | None = key(None, "A Python function; cannot be set in a file.")
    scale_mode: Literal["cycle", "iterations"] = key(
        "cycle", "Argument of scale_fn: cycle or iterations."
    )
    cycle_momentum: bool = key(True, "Cycle the momentum inversely to the learning rate.")
    base_momentum: Number = key(0.8, "Minimum momentum.")
    max_momentum: Number = key(0.9, "Maximum momentum.")


class OneCycleLR(TorchSchedule):
    """1cycle policy over the entire training."""

    max_lr: OrList[Number] = key(REQUIRED, "Maximum learning rate.")
    total_steps: Integer | None = key(None, "Total number of steps.", unit="steps")
    epochs: Integer | None = key(None, "Number of epochs; requires steps_per_epoch.")
    steps_per_epoch: Integer | None = key(None, "Steps per epoch.", unit="steps")
    pct_start: Number = key(0.3, "Fraction of the cycle spent increasing.")
    anneal_strategy: Literal["cos", "linear"] = key("cos", "Annealing strategy.")
    cycle_momentum: bool = key(True, "Cycle the momentum inversely to the learning rate.")
    base_momentum: OrList[Number] = key(0.85, "Minimum momentum.")
    max_momentum: OrList[Number] = key(0.95, "Maximum momentum.")
    div_factor: Number = key(25.0, "Ratio of max_lr to the initial learning rate.")
    final_div_factor: Number = key(10_000.0, "Ratio of the initial to the final learning rate.")
    three_phase: bool = key(False, "Use a third phase that ends at the final learning rate.")


class ReduceLROnPlateau(Block, arguments=True):
    """Decay when a metric stops improving; the engine does not pass a metric."""

    mode: Literal["min", "max"] = key("min", "Whether the metric is minimized or maximized.")
    factor: Number = key(0.1, "Decay factor.")
    patience: Integer = key(10, "Steps without improvement before a decay.", unit="steps")
    threshold: Number = key(0.0001, "Minimum improvement.")
    threshold_mode: Literal["rel", "abs"] = key("rel", "Relative or absolute improvement.")
    cooldown: Integer = key(0, "Steps to wait after a decay.", unit="steps")
    min_lr: OrList[Number] = key(0, "Minimum learning rate.")
    eps: Number = key(1e-08, "Minimum decay.")


class LambdaLR(TorchSchedule):
    """Learning rate from a Python function; only a script can create it."""

    lr_lambda: Function = key(REQUIRED, "A Python function; cannot be set in a file.")


class MultiplicativeLR(TorchSchedule):
    """Factor from a Python function; only a script can create it."""

    lr_lambda: Function = key(REQUIRED, "A Python function; cannot be set in a file.")


class ChainedScheduler(Block, arguments=True):
    """Several schedulers combined; only a script can create it."""

    schedulers: Schedules = key(REQUIRED, "Scheduler objects; cannot be set in a file.")


class SequentialLR(TorchSchedule):
    """Schedulers in sequence; only a script can create it."""

    schedulers: Schedules = key(REQUIRED, "Scheduler objects; cannot be set in a file.")
    milestones: list[Integer] = key(REQUIRED, "Steps at which the scheduler changes.", unit="steps")
