"""Every learning-rate schedule that a config may name, and where its arguments are declared."""

from collections.abc import Mapping
from typing import NamedTuple

from dsconfig.schema.version import Version

TOTAL = "scheduler.params.total_num_steps"
"""The steps of the whole run, which trainers know and files do not."""


class ScheduleType(NamedTuple):
    """What ``scheduler.type`` may say, spelled exactly.

    DeepSpeed's own since a release; None for a class of torch.optim.lr_scheduler.
    """

    name: str
    block: str
    """The module below ``schema.blocks`` that declares its arguments."""
    since: Version | None = None
    warms_up: bool = False
    """Whether it begins with a rise of ``warmup_num_steps``."""
    peak: str | None = None
    """The argument with the rate that it trains at, whatever the optimizer's is."""
    sets_rate: bool = False
    """Whether it puts rates of its own in the place of the optimizer's."""

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
    each.name: each
    for each in (
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

OWN = tuple(each.name for each in SCHEDULES.values() if each.is_own)
