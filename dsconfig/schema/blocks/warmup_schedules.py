"""Arguments of DeepSpeed's warmup schedules, and of all its schedules."""

from typing import Literal

from dsconfig.schema.declare import REQUIRED, Block, key
from dsconfig.schema.types import Integer, Number, OrAuto, OrList, Positive


class SchedulerParams(Block, arguments=True):
    """Arguments of every DeepSpeed schedule."""

    last_batch_iteration: Integer = key(
        -1, "Last step when resuming; -1: start from the beginning.", unit="steps"
    )


class Warmup(SchedulerParams):
    """Schedule with a warmup."""

    warmup_num_steps: OrAuto[Positive] = key(
        1000, "Warmup steps; values below 2 count as 2.", unit="steps"
    )
    warmup_type: Literal["log", "linear"] = key(
        "log",
        "Shape of the warmup; DeepSpeed warns about other values and uses log.",
        since="0.5.7",
    )


class WarmupLR(Warmup):
    """Warmup, then constant."""

    warmup_min_lr: OrAuto[OrList[Number]] = key(0.0, "Initial learning rate.")
    warmup_max_lr: OrAuto[OrList[Number]] | None = key(
        None,
        "Learning rate after the warmup; null: the optimizer's.",
        was={"0.17.2": 0.001},
    )


class WarmupDecayLR(Warmup):
    """Warmup, then linear decay to zero."""

    warmup_min_lr: OrAuto[OrList[Number]] = key(0.0, "Initial learning rate.")
    warmup_max_lr: OrAuto[OrList[Number]] | None = key(
        0.001, "Learning rate after the warmup; replaces the optimizer's."
    )
    total_num_steps: OrAuto[Integer] = key(
        REQUIRED,
        "Total number of steps, at which the decay ends.",
        unit="steps",
        since="0.3.1",
    )


class WarmupCosineLR(Warmup):
    """Warmup, then cosine decay; ratios of each parameter group's learning rate."""

    total_num_steps: OrAuto[Integer] = key(
        REQUIRED,
        "Total number of steps, at which the decay ends.",
        unit="steps",
        since="0.3.1",
    )
    warmup_min_ratio: Number = key(
        0.0, "Initial learning rate, as a fraction of the peak.", since="0.12.3"
    )
    cos_min_ratio: Number = key(
        0.0001, "Minimum learning rate, as a fraction of the peak.", since="0.12.3"
    )
