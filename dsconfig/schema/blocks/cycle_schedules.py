"""Arguments of DeepSpeed's schedules that look for a rate, or go through a cycle of rates."""

from dsconfig.schema.blocks.warmup_schedules import SchedulerParams
from dsconfig.schema.declare import REQUIRED, key
from dsconfig.schema.types import Integer, Natural, Number, OrList, Positive


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
