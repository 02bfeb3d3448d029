"""Monitors: where the numbers of a run go. Only rank 0 writes.

monitors = build_monitors(plan.effective.reporting.monitors)
monitors.write_events([("Train/Samples/lr", 1e-4, engine.global_samples)])
"""

from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Any

from dsengine.observation.monitors.base import Event, MissingPackageError, Monitor

BLOCKS = {
    "tensorboard": ("tensorboard", "TensorboardMonitor"),
    "wandb": ("wandb", "WandbMonitor"),
    "comet": ("comet", "CometMonitor"),
    "csv_monitor": ("csv_files", "CsvMonitor"),
}
"""By block of a config, its monitor: the module beside this one, which is loaded for it, and the
class."""

LEARNING_RATE = "Train/Samples/lr"
LOSS_SCALE = "Train/Samples/loss_scale"
TRAIN_LOSS = "Train/Samples/train_loss"


def elapsed_tag(timer: str) -> str:
    """Return the tag of a timer: forward, backward, backward_inner, backward_allreduce, step."""
    return f"Train/Samples/elapsed_time_ms_{timer}"


class Monitors:
    """All monitors that are switched on; none on ranks other than 0."""

    def __init__(self, monitors: list[Monitor]) -> None:
        self.monitors = monitors

    @property
    def enabled(self) -> bool:
        return bool(self.monitors)

    def write_events(self, events: Iterable[Event]) -> None:
        events = list(events)
        for monitor in self.monitors:
            monitor.write_events(events)

    def close(self) -> None:
        for monitor in self.monitors:
            monitor.close()
        self.monitors = []


def build_monitors(blocks: Mapping[str, Mapping[str, Any]], rank: int | None = None) -> Monitors:
    """Return the monitors of the enabled blocks, by name, for this rank.

    Raises MissingPackageError when one needs a package that is not installed, and ValueError
    for a block that is no monitor.
    """
    unknown = sorted(set(blocks) - set(BLOCKS))
    if unknown:
        raise ValueError(f"no such monitor: {', '.join(unknown)}; there are {', '.join(BLOCKS)}")
    if rank is None:
        import torch.distributed as dist

        rank = dist.get_rank() if dist.is_initialized() else 0
    if rank != 0:
        return Monitors([])
    return Monitors([_build(name, block) for name, block in blocks.items()])


def _build(name: str, block: Mapping[str, Any]) -> Monitor:
    home, kind = BLOCKS[name]
    return getattr(import_module(f"dsengine.observation.monitors.{home}"), kind)(block)


__all__ = [
    "BLOCKS",
    "LEARNING_RATE",
    "LOSS_SCALE",
    "TRAIN_LOSS",
    "Event",
    "MissingPackageError",
    "Monitor",
    "Monitors",
    "build_monitors",
    "elapsed_tag",
]
