"""Monitors: write metrics of a run, on rank 0 only.

    monitors = build_monitors(plan.effective.reporting.monitors)
    monitors.write_events([("Train/Samples/lr", 1e-4, engine.global_samples)])

A monitor imports its package when it is built.
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
_COMET_ARGUMENTS = ("api_key", "project", "workspace", "experiment_key", "mode", "online")


def elapsed_tag(timer: str) -> str:
    """Return the tag of a timer: forward, backward, backward_inner, backward_allreduce, step."""
    return f"Train/Samples/elapsed_time_ms_{timer}"


class Monitor(Protocol):
    def write_events(self, events: Iterable[Event]) -> None: ...

    def close(self) -> None: ...


class MissingPackageError(ImportError):
    """The package of an enabled monitor is not installed."""

    def __init__(self, block: str, package: str) -> None:
        super().__init__(
            f"{block}.enabled is true, but the package {package} is not installed: "
            f"pip install {package}, or disable the monitor"
        )


def _log_directory(block: Mapping[str, Any]) -> Path:
    return Path(block["output_path"]) / block["job_name"]


class TensorboardMonitor:
    """TensorBoard event files under ``{output_path}/{job_name}``."""

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
    """Weights & Biases; logs a step's values in one call, because steps must not decrease."""

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
    """Comet; logs each tag at most once per ``samples_log_interval`` samples."""

    def __init__(self, block: Mapping[str, Any]) -> None:
        try:
            comet = import_module("comet_ml")
        except ImportError:
            raise MissingPackageError("comet", "comet_ml") from None
        self._experiment = comet.start(**{name: block[name] for name in _COMET_ARGUMENTS})
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
    """One CSV file per tag, ``{output_path}/{job_name}/Train_Samples_lr.csv``, with ``step,value``.

    New files start with a header; existing ones are appended to, across runs.
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
"""Monitor by config block; takes the block with its defaults filled in."""


class Monitors:
    """All enabled monitors; none on ranks other than 0."""

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
    """Return this rank's monitors for the enabled blocks.

    Raises MissingPackageError if a package is not installed, and ValueError for an unknown monitor.
    """
    unknown = sorted(set(blocks) - set(BLOCKS))
    if unknown:
        raise ValueError(
            f"unknown monitor: {', '.join(unknown)}; expected one of {', '.join(BLOCKS)}"
        )
    if rank is None:
        import torch.distributed as dist

        rank = dist.get_rank() if dist.is_initialized() else 0
    if rank != 0:
        return Monitors([])
    return Monitors([BLOCKS[name](block) for name, block in blocks.items()])
