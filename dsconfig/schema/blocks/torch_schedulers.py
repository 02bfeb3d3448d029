"""Arguments of torch.optim.lr_scheduler's schedules, which DeepSpeed passes through."""

from typing import Annotated, Literal

from dsconfig.schema.declare import REQUIRED, Block, key
from dsconfig.schema.markers import NotInJson
from dsconfig.schema.types import Function, Integer, Number, OrList, Positive

Schedules = Annotated[str, NotInJson("list of schedules")]


class TorchSchedule(Block, arguments=True):
    """What almost every schedule of torch takes."""

    last_epoch: Integer = key(-1, "Step to continue from; -1 starts afresh.", unit="steps")


class ConstantLR(TorchSchedule):
    """A smaller rate for some steps."""

    factor: Number = key(1 / 3, "Factor on the rate.")
    total_iters: Integer = key(5, "How long it lasts.", unit="steps")


class LinearLR(TorchSchedule):
    """A straight line between two factors."""

    start_factor: Number = key(1 / 3, "First factor on the rate.")
    end_factor: Number = key(1.0, "Last factor on the rate.")
    total_iters: Integer = key(5, "How long it lasts.", unit="steps")


class PolynomialLR(TorchSchedule):
    """A polynomial down to zero."""

    total_iters: Integer = key(5, "How long it lasts.", unit="steps")
    power: Number = key(1.0, "Degree.")


class ExponentialLR(TorchSchedule):
    """A factor at every step."""

    gamma: Number = key(REQUIRED, "Factor per step.")


class StepLR(TorchSchedule):
    """A factor every so many steps."""

    step_size: Integer = key(REQUIRED, "Steps between two drops.", unit="steps")
    gamma: Number = key(0.1, "Factor per drop.")


class MultiStepLR(TorchSchedule):
    """A factor at chosen steps."""

    milestones: list[Integer] = key(REQUIRED, "Steps of the drops.", unit="steps")
    gamma: Number = key(0.1, "Factor per drop.")


class CosineAnnealingLR(TorchSchedule):
    """Half a cosine."""

    T_max: Integer = key(REQUIRED, "Steps to the lowest rate.", unit="steps")
    eta_min: Number = key(0.0, "Lowest rate.")


class CosineAnnealingWarmRestarts(TorchSchedule):
    """Cosines that start over."""

    T_0: Positive = key(REQUIRED, "Steps to the first restart.", unit="steps")
    T_mult: Positive = key(1, "Growth of the period.")
    eta_min: Number = key(0.0, "Lowest rate.")


class CyclicLR(TorchSchedule):
    """A rate that rises and falls again and again."""

    base_lr: OrList[Number] = key(REQUIRED, "Lowest rate.")
    max_lr: OrList[Number] = key(REQUIRED, "Highest rate.")
    step_size_up: Integer = key(2000, "Length of the rise.", unit="steps")
    step_size_down: Integer | None = key(None, "Length of the fall.", unit="steps")
    mode: Literal["triangular", "triangular2", "exp_range"] = key("triangular", "Shape.")
    gamma: Number = key(1.0, "Factor of the shape exp_range.")
    scale_fn: Function | None = key(None, "A Python function; no text can hold it.")
    scale_mode: Literal["cycle", "iterations"] = key("cycle", "What scale_fn counts.")
    cycle_momentum: bool = key(True, "Cycles the momentum against the rate.")
    base_momentum: Number = key(0.8, "Lowest momentum.")
    max_momentum: Number = key(0.9, "Highest momentum.")


class OneCycleLR(TorchSchedule):
    """One rise and fall over the whole training."""

    max_lr: OrList[Number] = key(REQUIRED, "Highest rate.")
    total_steps: Integer | None = key(None, "Length of the training.", unit="steps")
    epochs: Integer | None = key(None, "Epochs, with steps_per_epoch.")
    steps_per_epoch: Integer | None = key(None, "Steps per epoch.", unit="steps")
    pct_start: Number = key(0.3, "Share of the rise.")
    anneal_strategy: Literal["cos", "linear"] = key("cos", "Shape of the fall.")
    cycle_momentum: bool = key(True, "Cycles the momentum against the rate.")
    base_momentum: OrList[Number] = key(0.85, "Lowest momentum.")
    max_momentum: OrList[Number] = key(0.95, "Highest momentum.")
    div_factor: Number = key(25.0, "max_lr over the first rate.")
    final_div_factor: Number = key(10_000.0, "First rate over the last.")
    three_phase: bool = key(False, "A third phase that ends at the last rate.")


class ReduceLROnPlateau(Block, arguments=True):
    """Drops the rate when a metric stalls; the engine hands it no metric."""

    mode: Literal["min", "max"] = key("min", "Whether less or more is better.")
    factor: Number = key(0.1, "Factor per drop.")
    patience: Integer = key(10, "Steps without gain before a drop.", unit="steps")
    threshold: Number = key(0.0001, "Smallest gain that counts.")
    threshold_mode: Literal["rel", "abs"] = key("rel", "Whether the gain is relative.")
    cooldown: Integer = key(0, "Steps of rest after a drop.", unit="steps")
    min_lr: OrList[Number] = key(0, "Lowest rate.")
    eps: Number = key(1e-08, "Smallest drop that is made.")


class LambdaLR(TorchSchedule):
    """A Python function of the step; a script builds it."""

    lr_lambda: Function = key(REQUIRED, "A Python function; no text can hold it.")


class MultiplicativeLR(TorchSchedule):
    """A Python function that gives factors; a script builds it."""

    lr_lambda: Function = key(REQUIRED, "A Python function; no text can hold it.")


class ChainedScheduler(Block, arguments=True):
    """Several schedules at once; a script builds them."""

    schedulers: Schedules = key(REQUIRED, "Schedule objects; no text can hold them.")


class SequentialLR(TorchSchedule):
    """One schedule after another; a script builds them."""

    schedulers: Schedules = key(REQUIRED, "Schedule objects; no text can hold them.")
    milestones: list[Integer] = key(REQUIRED, "Steps at which they change.", unit="steps")
