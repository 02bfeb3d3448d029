"""Comet, with at least ``samples_log_interval`` samples between two values of a tag."""

from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Any

from dsengine.observation.monitors.base import Event, MissingPackageError, setting

_STARTED_WITH = ("api_key", "project", "workspace", "experiment_key", "mode", "online")


class CometMonitor:
    def __init__(self, block: Mapping[str, Any]) -> None:
        try:
            comet = import_module("comet_ml")
        except ImportError:
            raise MissingPackageError("comet", "comet_ml") from None
        self._experiment = comet.start(**{name: setting(block, name) for name in _STARTED_WITH})
        name = setting(block, "experiment_name")
        if name is not None:
            self._experiment.set_name(name)
        self._interval = int(setting(block, "samples_log_interval", 100))
        self._last: dict[str, int] = {}

    def write_events(self, events: Iterable[Event]) -> None:
        for tag, value, step in events:
            last = self._last.get(tag)
            if last is None or step - last >= self._interval:
                self._last[tag] = step
                self._experiment.log_metric(tag, value, step=step)

    def close(self) -> None:
        self._experiment.end()
