"""The engine's modules at the paths of DeepSpeed."""

from dsengine.deepspeed.runtime import (
    activation_checkpointing,
    dataloader,
    engine,
    lr_schedules,
    utils,
    zero,
)

__all__ = ["activation_checkpointing", "dataloader", "engine", "lr_schedules", "utils", "zero"]
