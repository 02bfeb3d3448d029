"""TensorBoard event files under ``{output_path}/{job_name}``."""

from collections.abc import Iterable, Mapping
from typing import Any

from dsengine.observation.monitors.base import Event, MissingPackageError, log_directory


class TensorboardMonitor:
    def __init__(self, block: Mapping[str, Any]) -> None:
        try:
            from torch.utils.tensorboard.writer import SummaryWriter
        except ImportError:
            raise MissingPackageError("tensorboard", "tensorboard") from None
        self._writer = SummaryWriter(log_dir=log_directory(block))

    def write_events(self, events: Iterable[Event]) -> None:
        for tag, value, step in events:
            self._writer.add_scalar(tag, value, step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()
