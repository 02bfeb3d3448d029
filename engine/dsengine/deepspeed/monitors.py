"""Monitors that a script builds itself, with the same writers as an engine's.

monitor = MonitorMaster(DeepSpeedConfig("ds.json").monitor_config)
monitor.write_events([("Train/accuracy", 0.7, samples)])
"""

from collections.abc import Iterable
from typing import Any

from dsengine.deepspeed.config import ConfigBlock, DeepSpeedMonitorConfig
from dsengine.observation.monitors import BLOCKS, Event, build_monitors


class Monitor:
    """One destination of metrics, which rank 0 writes if its block is enabled.

    The fields of the block are attributes. Raises MissingPackageError (an ImportError) if a
    required package is not installed.
    """

    enabled: bool

    def __init__(self, monitor_config: ConfigBlock) -> None:
        (block,) = monitor_config.path
        self.monitor_config = monitor_config
        values: dict[str, Any] = vars(monitor_config)
        vars(self).update(values)
        self._open = build_monitors({block: values} if self.enabled else {})

    def write_events(self, event_list: Iterable[Event], flush: bool = True) -> None:
        """Write (tag, value, step) of each event; ``step`` counts samples."""
        del flush
        self._open.write_events(event_list)


class MonitorMaster:
    """All enabled monitors of a config."""

    def __init__(self, monitor_config: DeepSpeedMonitorConfig) -> None:
        self.monitor_config = monitor_config
        self.enabled = monitor_config.enabled
        blocks = {name: vars(getattr(monitor_config, name)) for name in BLOCKS}
        self._open = build_monitors({n: block for n, block in blocks.items() if block["enabled"]})

    def write_events(self, event_list: Iterable[Event]) -> None:
        """Write (tag, value, step) of each event to every monitor."""
        self._open.write_events(event_list)


class CometMonitor(Monitor):
    """Takes the ``comet`` block of a config."""


class csvMonitor(Monitor):
    """Takes the ``csv_monitor`` block of a config."""


class TensorBoardMonitor(Monitor):
    """Takes the ``tensorboard`` block of a config."""


class WandbMonitor(Monitor):
    """Takes the ``wandb`` block of a config."""
