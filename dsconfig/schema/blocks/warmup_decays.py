"""Arguments of DeepSpeed's schedules that rise and fall."""

from dsconfig.schema.blocks.scheduler_params import Warmup
from dsconfig.schema.declare import REQUIRED, TRAINER, key
from dsconfig.schema.types import Integer, Number, OrAuto, OrList


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
