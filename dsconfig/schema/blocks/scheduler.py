"""The learning-rate schedule: its name, and the arguments it is built with."""

from typing import TYPE_CHECKING, Annotated, Any, Literal

from dsconfig.schema.declare import REQUIRED, Block, key
from dsconfig.schema.lazy import Lazy, Variants

if TYPE_CHECKING:
    from dsconfig.schema.blocks.scheduler_params import SchedulerParams

WARMUP_DECAYS = ("WarmupDecayLR", "WarmupCosineLR")
CYCLES = ("LRRangeTest", "OneCycle")
DEEPSPEED = ("WarmupLR", *WARMUP_DECAYS, *CYCLES)
"""DeepSpeed's own schedules, spelled exactly."""
TORCH = (
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
"""Classes of torch.optim.lr_scheduler, spelled exactly."""

SchedulerName = Literal[
    "WarmupLR",
    "WarmupDecayLR",
    "WarmupCosineLR",
    "LRRangeTest",
    "OneCycle",
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
]

PARAMS = Variants(
    {
        "WarmupLR": Lazy("scheduler_params", "WarmupLR"),
        **{name: Lazy("warmup_decays", name) for name in WARMUP_DECAYS},
        **{name: Lazy("cycle_schedules", name) for name in CYCLES},
        **{name: Lazy("torch_schedulers", name) for name in TORCH},
    }
)

if not TYPE_CHECKING:
    SchedulerParams = Any


class Scheduler(Block):
    """The schedule that the engine steps after each optimizer step."""

    type: SchedulerName = key(
        REQUIRED, "A schedule of DeepSpeed or of torch.optim.lr_scheduler, spelled exactly."
    )
    params: Annotated[SchedulerParams, PARAMS] = key(
        REQUIRED, "Keyword arguments of the schedule; leaving them out fails."
    )
