"""Learning-rate scheduler type and arguments."""

from typing import TYPE_CHECKING, Annotated, Any, Literal

from dsconfig.schema.declare import REQUIRED, Block, key
from dsconfig.schema.lazy import Variants
from dsconfig.schema.schedules import SCHEDULES

if TYPE_CHECKING:
    from dsconfig.schema.blocks.warmup_schedules import SchedulerParams

    SchedulerName = str
else:
    SchedulerName = Literal[tuple(SCHEDULES)]
    SchedulerParams = Any

PARAMS = Variants(SCHEDULES)


class Scheduler(Block):
    """Learning-rate scheduler that the engine steps after each optimizer step."""

    type: SchedulerName = key(
        REQUIRED, "A DeepSpeed or torch.optim.lr_scheduler scheduler (exact spelling)."
    )
    params: Annotated[SchedulerParams, PARAMS] = key(
        REQUIRED, "Keyword arguments of the scheduler; required."
    )
