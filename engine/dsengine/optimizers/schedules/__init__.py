"""Learning-rate schedules by name: DeepSpeed's five and all of torch's."""

from collections.abc import Mapping
from typing import Any

import torch.optim.lr_scheduler as torch_schedules
from torch.optim import Optimizer

from dsengine.optimizers.schedules.base import Schedule
from dsengine.optimizers.schedules.one_cycle import OneCycle
from dsengine.optimizers.schedules.range_test import LRRangeTest
from dsengine.optimizers.schedules.warmup import WarmupCosineLR, WarmupDecayLR, WarmupLR

SCHEDULES: Mapping[str, type[Schedule]] = {
    schedule.__name__: schedule
    for schedule in (LRRangeTest, OneCycle, WarmupLR, WarmupDecayLR, WarmupCosineLR)
}
VALID_LR_SCHEDULES = list(SCHEDULES)


def build_schedule(name: str, params: Mapping[str, Any], optimizer: Optimizer) -> Any:
    """Build the schedule ``name`` for ``optimizer``.

    Raises ValueError for an unknown name, and the schedule's own errors for invalid parameters.
    """
    kind = SCHEDULES.get(name) or getattr(torch_schedules, name, None)
    if not isinstance(kind, type) or not hasattr(kind, "step"):
        raise ValueError(
            f"scheduler.type {name!r} is unknown: use one of {', '.join(SCHEDULES)}, "
            "or a class name of torch.optim.lr_scheduler"
        )
    return kind(optimizer, **params)


def check_metrics(schedule: Any, arguments: Mapping[str, Any]) -> None:
    """Raise ValueError if ``ReduceLROnPlateau`` lacks its metric, before anything is updated."""
    if isinstance(schedule, torch_schedules.ReduceLROnPlateau) and "metrics" not in arguments:
        raise ValueError(
            'ReduceLROnPlateau requires a metric: engine.step(lr_kwargs={"metrics": loss})'
        )


__all__ = [
    "SCHEDULES",
    "VALID_LR_SCHEDULES",
    "LRRangeTest",
    "OneCycle",
    "Schedule",
    "WarmupCosineLR",
    "WarmupDecayLR",
    "WarmupLR",
    "build_schedule",
    "check_metrics",
]
