"""The engine's parts where scripts written for DeepSpeed look for them."""

from dsengine.deepspeed.runtime import (
    activation_checkpointing,
    dataloader,
    engine,
    lr_schedules,
    utils,
    zero,
)

__all__ = ["activation_checkpointing", "dataloader", "engine", "lr_schedules", "utils", "zero"]
