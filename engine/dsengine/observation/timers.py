"""Time of forward, backward and step, and samples per second."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

WARM_STEPS = 2
"""Steps left out of the average rate: allocation and caching distort them."""


def finished_at(device: torch.device) -> float:
    """The time when ``device`` has done what was asked of it, in seconds."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


class Timers:
    """Milliseconds by phase, summed since they were last taken; the device is synchronised."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._sums: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        started = finished_at(self._device)
        try:
            yield
        finally:
            passed = finished_at(self._device) - started
            self._sums[name] = self._sums.get(name, 0.0) + passed * 1e3

    def take(self) -> dict[str, float]:
        """Return the sums and start anew."""
        sums, self._sums = self._sums, {}
        return sums


class Throughput:
    """Samples per second over the boundaries seen, the first few left out.

    ``synchronized``: the device has finished its work when the rate is taken.
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
        if self._boundaries == WARM_STEPS:
            self._began = self._end()

    def update_epoch_count(self) -> None:
        """Count a pass over the data, as scripts tell at the end of one; rates go on."""
        self.epoch_count += 1

    def avg_samples_per_sec(self) -> float:
        """The mean rate over all ranks; 0 while it is still warming up."""
        steps, seconds = self._boundaries - WARM_STEPS, self._end() - self._began
        return steps * self.batch_size / seconds if steps > 0 and seconds > 0 else 0.0

    def _end(self) -> float:
        # Waiting at every boundary would keep work from being queued up.
        waits = self._synchronized and self._device.type == "cuda"
        return finished_at(self._device) if waits else self._last
