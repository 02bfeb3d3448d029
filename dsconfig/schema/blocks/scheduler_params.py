"""Arguments of DeepSpeed's learning-rate schedules."""

from typing import Literal

from dsconfig.schema.declare import REQUIRED, TRAINER, Block, key
from dsconfig.schema.types import Integer, Natural, Number, OrAuto, OrList, Positive


class SchedulerParams(Block, arguments=True):
    """What every schedule of DeepSpeed takes."""

    last_batch_iteration: Integer = key(
        -1, "Step to continue from; -1 starts afresh.", unit="steps"
    )


class Warmup(SchedulerParams):
    """A schedule that begins with a rise."""

    warmup_num_steps: OrAuto[Positive] = key(
        1000, "Length of the rise; at least 2 count.", unit="steps", auto=TRAINER
    )
    warmup_type: Literal["log", "linear"] = key(
        "log", "Shape of the rise; another word warns and means log.", since="0.5.7"
    )


class WarmupLR(Warmup):
    """A rise, then a constant rate."""

    warmup_min_lr: OrAuto[OrList[Number]] = key(0.0, "Rate at the start.", auto=TRAINER)
    warmup_max_lr: OrAuto[OrList[Number]] | None = key(
        None, "Rate after the rise; null takes the optimizer's.", auto=TRAINER
    )


class WarmupDecayLR(Warmup, since="0.3.1"):
    """A rise, then a straight line to zero."""

    warmup_min_lr: OrAuto[OrList[Number]] = key(0.0, "Rate at the start.", auto=TRAINER)
    warmup_max_lr: OrAuto[OrList[Number]] | None = key(
        0.001, "Rate after the rise; replaces the optimizer's.", auto=TRAINER
    )
    total_num_steps: OrAuto[Integer] = key(
        REQUIRED,
        "Step at which the rate reaches its end.",
        unit="steps",
        since="0.3.1",
        auto=TRAINER,
    )


class WarmupCosineLR(Warmup, since="0.12.3"):
    """A rise, then a cosine; ratios of each group's own rate."""

    total_num_steps: OrAuto[Integer] = key(
        REQUIRED,
        "Step at which the rate reaches its end.",
        unit="steps",
        since="0.3.1",
        auto=TRAINER,
    )
    warmup_min_ratio: Number = key(
        0.0, "Start of the rise, as a share of the rate.", since="0.12.3"
    )
    cos_min_ratio: Number = key(
        0.0001, "Floor of the cosine, as a share of the rate.", since="0.12.3"
    )


class LRRangeTest(SchedulerParams):
    """A rate that grows and grows, to find where training breaks."""

    lr_range_test_min_lr: OrList[Number] = key(0.001, "First rate.")
    lr_range_test_step_size: Positive = key(2000, "Steps per interval.", unit="steps")
    lr_range_test_step_rate: Number = key(1.0, "Growth per interval.")
    lr_range_test_staircase: bool = key(False, "Grows in stairs rather than continuously.")


class OneCycle(SchedulerParams):
    """One rise and fall of the rate, momentum against it, then decay."""

    cycle_min_lr: OrList[Number] = key(REQUIRED, "Lowest rate of the cycle.")
    cycle_max_lr: OrList[Number] = key(REQUIRED, "Highest rate of the cycle.")
    decay_lr_rate: Number = key(0.0, "Decay of the rate per interval after the cycle.")
    cycle_first_step_size: Positive = key(2000, "Length of the rise.", unit="steps")
    cycle_second_step_size: Natural | None = key(
        None, "Length of the fall; null is as long as the rise.", unit="steps"
    )
    cycle_first_stair_count: Integer = key(0, "Stairs of the rise; 0 is continuous.")
    cycle_second_stair_count: Integer | None = key(
        None, "Stairs of the fall; null is as many as the rise has."
    )
    decay_step_size: Integer = key(
        0, "Steps per interval after the cycle; 0 is no decay.", unit="steps"
    )
    cycle_momentum: bool = key(True, "Cycles beta1 as well.")
    cycle_min_mom: Number = key(0.8, "Lowest momentum of the cycle.")
    cycle_max_mom: Number = key(0.9, "Highest momentum of the cycle.")
    decay_mom_rate: Number = key(0.0, "Decay of the momentum per interval after the cycle.")
