"""Monitors: where the numbers of a run go. Only rank 0 writes.

monitors = build_monitors(plan.effective.reporting.monitors)
monitors.write_events([("Train/Samples/lr", 1e-4, engine.global_samples)])

A monitor imports the package that it needs when it is built.
"""

import csv
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

Event = tuple[str, float, int]
"""Tag, value, step; ``step`` counts samples."""

LEARNING_RATE = "Train/Samples/lr"
LOSS_SCALE = "Train/Samples/loss_scale"
TRAIN_LOSS = "Train/Samples/train_loss"
_COMET_STARTED_WITH = ("api_key", "project", "workspace", "experiment_key", "mode", "online")


def elapsed_tag(timer: str) -> str:
    """Return the tag of a timer: forward, backward, backward_inner, backward_allreduce, step."""
    return f"Train/Samples/elapsed_time_ms_{timer}"


class Monitor(Protocol):
    def write_events(self, events: Iterable[Event]) -> None: ...

    def close(self) -> None: ...


class MissingPackageError(ImportError):
    """A monitor is switched on whose package is not installed."""

    def __init__(self, block: str, package: str) -> None:
        super().__init__(
            f"{block}.enabled is true, but the package {package} is not installed: "
            f"pip install {package}, or switch the monitor off"
        )


def _log_directory(block: Mapping[str, Any]) -> Path:
    return Path(block["output_path"]) / block["job_name"]


class TensorboardMonitor:
    """Event files under ``{output_path}/{job_name}``."""

    def __init__(self, block: Mapping[str, Any]) -> None:
        try:
            from torch.utils.tensorboard.writer import SummaryWriter
        except ImportError:
            raise MissingPackageError("tensorboard", "tensorboard") from None
        self._writer = SummaryWriter(log_dir=str(_log_directory(block)))

    def write_events(self, events: Iterable[Event]) -> None:
        for tag, value, step in events:
            self._writer.add_scalar(tag, value, step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class WandbMonitor:
    """Weights & Biases: a step goes out in one call, for steps must not go backwards there."""

    def __init__(self, block: Mapping[str, Any]) -> None:
        try:
            self._wandb = import_module("wandb")
        except ImportError:
            raise MissingPackageError("wandb", "wandb") from None
        self._run = self._wandb.init(
            project=block["project"], group=block["group"], entity=block["team"]
        )

    def write_events(self, events: Iterable[Event]) -> None:
        by_step: dict[int, dict[str, float]] = {}
        for tag, value, step in events:
            by_step.setdefault(step, {})[tag] = value
        for step, values in by_step.items():
            self._wandb.log(values, step=step)

    def close(self) -> None:
        self._wandb.finish()


class CometMonitor:
    """At least ``samples_log_interval`` samples lie between two values of a tag."""

    def __init__(self, block: Mapping[str, Any]) -> None:
        try:
            comet = import_module("comet_ml")
        except ImportError:
            raise MissingPackageError("comet", "comet_ml") from None
        self._experiment = comet.start(**{name: block[name] for name in _COMET_STARTED_WITH})
        if block["experiment_name"] is not None:
            self._experiment.set_name(block["experiment_name"])
        self._interval: int = block["samples_log_interval"]
        self._last: dict[str, int] = {}

    def write_events(self, events: Iterable[Event]) -> None:
        for tag, value, step in events:
            last = self._last.get(tag)
            if last is None or step - last >= self._interval:
                self._last[tag] = step
                self._experiment.log_metric(tag, value, step=step)

    def close(self) -> None:
        self._experiment.end()


class CsvMonitor:
    """One file a tag, ``{output_path}/{job_name}/Train_Samples_lr.csv``, of ``step,value``.

    It begins with a header and is appended to, also over several runs.
    """

    def __init__(self, block: Mapping[str, Any]) -> None:
        self.directory = _log_directory(block)
        self.directory.mkdir(parents=True, exist_ok=True)

    def write_events(self, events: Iterable[Event]) -> None:
        for tag, value, step in events:
            path = self.directory / (tag.replace("/", "_").replace(" ", "_") + ".csv")
            with path.open("a", newline="", encoding="utf-8") as file:
                writer = csv.writer(file)
                if file.tell() == 0:
                    writer.writerow(["step", tag.rsplit("/", 1)[-1]])
                writer.writerow([step, value])

    def close(self) -> None:
        pass


BLOCKS: Mapping[str, Callable[[Mapping[str, Any]], Monitor]] = {
    "tensorboard": TensorboardMonitor,
    "wandb": WandbMonitor,
    "comet": CometMonitor,
    "csv_monitor": CsvMonitor,
}
"""By block of a config, its monitor, which takes the block with its defaults filled in."""


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
    return Monitors([BLOCKS[name](block) for name, block in blocks.items()])


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
