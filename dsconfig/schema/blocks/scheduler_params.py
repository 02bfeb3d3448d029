"""Arguments that DeepSpeed's schedules share, and those of a rise to a constant rate."""

from typing import Literal

from dsconfig.schema.declare import TRAINER, Block, key
from dsconfig.schema.types import Integer, Number, OrAuto, OrList, Positive


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
