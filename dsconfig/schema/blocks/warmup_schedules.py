"""Arguments of DeepSpeed's schedules that begin with a rise, and what all of them take."""

from typing import Literal

from dsconfig.schema.declare import REQUIRED, Block, key
from dsconfig.schema.types import Integer, Number, OrAuto, OrList, Positive


class SchedulerParams(Block, arguments=True):
    """What every schedule of DeepSpeed takes."""

    last_batch_iteration: Integer = key(
        -1, "Step to continue from; -1 starts afresh.", unit="steps"
    )


class Warmup(SchedulerParams):
    """A schedule that begins with a rise."""

    warmup_num_steps: OrAuto[Positive] = key(
        1000, "Length of the rise; at least 2 count.", unit="steps"
    )
    warmup_type: Literal["log", "linear"] = key(
        "log", "Shape of the rise; another word warns and means log.", since="0.5.7"
    )


class WarmupLR(Warmup):
    """A rise, then a constant rate."""

    warmup_min_lr: OrAuto[OrList[Number]] = key(0.0, "Rate at the start.")
    warmup_max_lr: OrAuto[OrList[Number]] | None = key(
        None,
        "Rate after the rise; null takes the optimizer's.",
        was={"0.17.2": 0.001},
    )


class WarmupDecayLR(Warmup):
    """A rise, then a straight line to zero."""

    warmup_min_lr: OrAuto[OrList[Number]] = key(0.0, "Rate at the start.")
    warmup_max_lr: OrAuto[OrList[Number]] | None = key(
        0.001, "Rate after the rise; replaces the optimizer's."
    )
    total_num_steps: OrAuto[Integer] = key(
        REQUIRED,
        "Step at which the rate reaches its end.",
        unit="steps",
        since="0.3.1",
    )


class WarmupCosineLR(Warmup):
    """A rise, then a cosine; ratios of each group's own rate."""

    total_num_steps: OrAuto[Integer] = key(
        REQUIRED,
        "Step at which the rate reaches its end.",
        unit="steps",
        since="0.3.1",
    )
    warmup_min_ratio: Number = key(
        0.0, "Start of the rise, as a share of the rate.", since="0.12.3"
    )
    cos_min_ratio: Number = key(
        0.0001, "Floor of the cosine, as a share of the rate.", since="0.12.3"
    )
