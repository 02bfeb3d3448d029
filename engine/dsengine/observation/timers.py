"""Timers of forward, backward and step, and samples per second."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

WARMUP_STEPS = 2
"""Steps excluded from the average rate, which allocation and caching distort."""


def finished_at(device: torch.device) -> float:
    """Return the time in seconds after ``device`` has finished its queued work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


class Timers:
    """Milliseconds by phase since the last ``take``.

    On a GPU they are measured between events, so that only ``take`` waits for the device.
    """

    def __init__(self, device: torch.device) -> None:
        self._is_cuda = device.type == "cuda"
        self._spans: list[tuple[str, Any, Any]] = []

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        started = self._mark()
        try:
            yield
        finally:
            self._spans.append((name, started, self._mark()))

    def take(self) -> dict[str, float]:
        """Return the sums and reset them."""
        spans, self._spans = self._spans, []
        if self._is_cuda and spans:
            spans[-1][2].synchronize()
        sums: dict[str, float] = {}
        for name, started, ended in spans:
            passed = started.elapsed_time(ended) if self._is_cuda else (ended - started) * 1e3
            sums[name] = sums.get(name, 0.0) + passed
        return sums

    def _mark(self) -> Any:
        """Return the time in seconds; on a GPU an event, which has its time when it is reached."""
        if not self._is_cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


class Throughput:
    """Samples per second over the boundaries so far, excluding warmup.

    ``synchronized``: synchronize the device before taking the rate.
    """

    def __init__(self, samples_per_step: int, device: torch.device, *, synchronized: bool) -> None:
        self.batch_size = samples_per_step
        self._device = device
        self._synchronized = synchronized
        self.epoch_count = 0
        self._boundaries = 0
        self._began = 0.0
        self._last = 0.0

    def boundary(self) -> None:
        self._boundaries += 1
        self._last = time.perf_counter()
        if self._boundaries == WARMUP_STEPS:
            self._began = self._end()

    def update_epoch_count(self) -> None:
        """Count an epoch, which scripts report at its end; the rate is unaffected."""
        self.epoch_count += 1

    def avg_samples_per_sec(self) -> float:
        """Return the mean rate over all ranks; 0 during warmup."""
        steps, seconds = self._boundaries - WARMUP_STEPS, self._end() - self._began
        return steps * self.batch_size / seconds if steps > 0 and seconds > 0 else 0.0

    def _end(self) -> float:
        # Synchronizing at every boundary would prevent work from being queued.
        waits = self._synchronized and self._device.type == "cuda"
        return finished_at(self._device) if waits else self._last
