"""Weights & Biases."""

from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Any

from dsengine.observation.monitors.base import Event, MissingPackageError, setting


class WandbMonitor:
    """All events of one step go out in one call: steps must not go backwards there."""

    def __init__(self, block: Mapping[str, Any]) -> None:
        try:
            self._wandb = import_module("wandb")
        except ImportError:
            raise MissingPackageError("wandb", "wandb") from None
        self._run = self._wandb.init(
            project=setting(block, "project", "deepspeed"),
            group=setting(block, "group"),
            entity=setting(block, "team"),
        )

    def write_events(self, events: Iterable[Event]) -> None:
        by_step: dict[int, dict[str, float]] = {}
        for tag, value, step in events:
            by_step.setdefault(step, {})[tag] = value
        for step, values in by_step.items():
            self._wandb.log(values, step=step)

    def close(self) -> None:
        self._wandb.finish()
