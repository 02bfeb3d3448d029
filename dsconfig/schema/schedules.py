"""Learning-rate schedules of a config, and where their arguments are declared."""

from collections.abc import Mapping
from typing import NamedTuple

from dsconfig.schema.version import Version


class ScheduleType(NamedTuple):
    """Value of ``scheduler.type`` (exact spelling).

    ``since``: first release of DeepSpeed's own; None for a torch.optim.lr_scheduler class.
    """

    name: str
    block: str
    """Module of ``schema.blocks`` that declares its arguments."""
    since: Version | None = None
    warms_up: bool = False
    """Whether it starts with a warmup of ``warmup_num_steps``."""
    peak: str | None = None
    """Argument with the peak learning rate, which replaces the optimizer's."""
    sets_rate: bool = False
    """Whether it replaces the optimizer's learning rate."""

    @property
    def is_own(self) -> bool:
        return self.since is not None

    def is_known_at(self, release: Version) -> bool:
        return self.since is None or release >= self.since


def _own(name: str, block: str, since: str, peak: str | None = None) -> ScheduleType:
    warms_up = block == "warmup_schedules"
    sets_rate = name != "WarmupCosineLR"
    return ScheduleType(name, block, Version.parse(since), warms_up, peak, sets_rate)


SCHEDULES: Mapping[str, ScheduleType] = {
    schedule.name: schedule
    for schedule in (
        _own("WarmupLR", "warmup_schedules", "0.3.0", "warmup_max_lr"),
        _own("WarmupDecayLR", "warmup_schedules", "0.3.1", "warmup_max_lr"),
        _own("WarmupCosineLR", "warmup_schedules", "0.12.3"),
        _own("LRRangeTest", "cycle_schedules", "0.3.0"),
        _own("OneCycle", "cycle_schedules", "0.3.0", "cycle_max_lr"),
        *(
            ScheduleType(name, "torch_schedulers", sets_rate=name in ("CyclicLR", "OneCycleLR"))
            for name in (
                "ChainedScheduler",
                "ConstantLR",
                "CosineAnnealingLR",
                "CosineAnnealingWarmRestarts",
                "CyclicLR",
                "ExponentialLR",
                "LambdaLR",
                "LinearLR",
                "MultiStepLR",
                "MultiplicativeLR",
                "OneCycleLR",
                "PolynomialLR",
                "ReduceLROnPlateau",
                "SequentialLR",
                "StepLR",
            )
        ),
    )
}
"""By name, DeepSpeed's own first."""

OWN = tuple(schedule.name for schedule in SCHEDULES.values() if schedule.is_own)
