"""Arguments of DeepSpeed's LRRangeTest and OneCycle."""

from dsconfig.schema.blocks.warmup_schedules import SchedulerParams
from dsconfig.schema.declare import REQUIRED, key
from dsconfig.schema.types import Integer, Natural, Number, OrList, Positive


class LRRangeTest(SchedulerParams):
    """Increasing learning rate, to find the largest stable one."""

    lr_range_test_min_lr: OrList[Number] = key(0.001, "Initial learning rate.")
    lr_range_test_step_size: Positive = key(2000, "Steps per interval.", unit="steps")
    lr_range_test_step_rate: Number = key(1.0, "Increase per interval.")
    lr_range_test_staircase: bool = key(False, "Increase in steps instead of continuously.")


class OneCycle(SchedulerParams):
    """1cycle: the learning rate rises and falls, momentum does the opposite, then both decay."""

    cycle_min_lr: OrList[Number] = key(REQUIRED, "Minimum learning rate of the cycle.")
    cycle_max_lr: OrList[Number] = key(REQUIRED, "Maximum learning rate of the cycle.")
    decay_lr_rate: Number = key(0.0, "Decay of the learning rate per interval after the cycle.")
    cycle_first_step_size: Positive = key(2000, "Length of the increasing phase.", unit="steps")
    cycle_second_step_size: Natural | None = key(
        None, "Length of the decreasing phase; null: same as the increasing phase.", unit="steps"
    )
    cycle_first_stair_count: Integer = key(
        0, "Number of stairs in the increasing phase; 0: continuous."
    )
    cycle_second_stair_count: Integer | None = key(
        None, "Number of stairs in the decreasing phase; null: same as the increasing phase."
    )
    decay_step_size: Integer = key(
        0, "Steps per decay interval after the cycle; 0: no decay.", unit="steps"
    )
    cycle_momentum: bool = key(True, "Cycle the momentum (beta1) as well.")
    cycle_min_mom: Number = key(0.8, "Minimum momentum of the cycle.")
    cycle_max_mom: Number = key(0.9, "Maximum momentum of the cycle.")
    decay_mom_rate: Number = key(0.0, "Decay of the momentum per interval after the cycle.")
