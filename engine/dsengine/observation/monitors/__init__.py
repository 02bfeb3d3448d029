"""Monitors: where the numbers of a run go. Only rank 0 writes.

monitors = build_monitors(plan.effective.reporting.monitors)
monitors.write_events([("Train/Samples/lr", 1e-4, engine.global_samples)])
"""

from collections.abc import Iterable, Mapping
from typing import Any

from dsengine.observation.monitors.base import Event, MissingPackageError, Monitor

BLOCKS = ("tensorboard", "wandb", "comet", "csv_monitor")

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
    if (_rank() if rank is None else rank) != 0:
        return Monitors([])
    return Monitors([_build(name, block) for name, block in blocks.items()])


def _build(name: str, block: Mapping[str, Any]) -> Monitor:
    if name == "csv_monitor":
        from dsengine.observation.monitors.csv_files import CsvMonitor

        return CsvMonitor(block)
    if name == "tensorboard":
        from dsengine.observation.monitors.tensorboard import TensorboardMonitor

        return TensorboardMonitor(block)
    if name == "wandb":
        from dsengine.observation.monitors.wandb import WandbMonitor

        return WandbMonitor(block)
    from dsengine.observation.monitors.comet import CometMonitor

    return CometMonitor(block)


def _rank() -> int:
    import torch.distributed as dist

    return dist.get_rank() if dist.is_initialized() else 0


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
