"""Timers for scripts, synchronized with the device."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from dsengine.deepspeed.accelerator import get_accelerator
from dsengine.deepspeed.utils.logging import log_dist


def trim_mean(data: Sequence[float], trim_percent: float) -> float:
    """Return the mean without a share of the smallest and largest values; 0 without values.

    Raises ValueError for a share outside of 0 to 1; from 0.5 on only the median is left.
    """
    if not 0.0 <= trim_percent <= 1.0:
        raise ValueError(f"trim_percent={trim_percent}: must be between 0 and 1")
    cut = min(round(len(data) * trim_percent), max(len(data) - 1, 0) // 2)
    kept = sorted(data)[cut : len(data) - cut]
    return sum(kept) / len(kept) if kept else 0.0


def _now() -> float:
    get_accelerator().synchronize()
    return time.perf_counter()


class SynchronizedWallClockTimer:
    """Timers by name: ``timers("forward").start()`` ... ``stop()``."""

    @dataclass
    class Timer:
        """Sums the milliseconds between ``start`` and ``stop``."""

        name: str
        total: float = 0.0
        started: float | None = None
        records: list[float] = field(default_factory=list)

        def start(self) -> None:
            self.started = _now()

        def stop(self, reset: bool = False, record: bool = False) -> None:
            if self.started is None:
                raise RuntimeError(f"timer {self.name!r} was not started")
            milliseconds = (_now() - self.started) * 1e3
            self.total = milliseconds if reset else self.total + milliseconds
            self.started = None
            if record:
                self.records.append(milliseconds)

        def reset(self) -> None:
            self.total, self.started = 0.0, None
            self.records.clear()

        def elapsed(self, reset: bool = True) -> float:
            """Return the milliseconds so far, including those of a running timer."""
            running = 0.0 if self.started is None else (_now() - self.started) * 1e3
            elapsed = self.total + running
            if reset:
                self.total = 0.0
                self.started = None if self.started is None else _now()
            return elapsed

        def mean(self) -> float:
            """Return the trimmed mean of the records, without a tenth at either end."""
            return trim_mean(self.records, 0.1)

    def __init__(self) -> None:
        self.timers: dict[str, SynchronizedWallClockTimer.Timer] = {}

    def get_timers(self) -> dict[str, "SynchronizedWallClockTimer.Timer"]:
        return self.timers

    def __call__(self, name: str) -> "SynchronizedWallClockTimer.Timer":
        return self.timers.setdefault(name, self.Timer(name))

    def log(
        self,
        names: Iterable[str],
        normalizer: float = 1.0,
        reset: bool = True,
        memory_breakdown: bool = False,
        ranks: list[int] | None = None,
    ) -> None:
        """Log milliseconds divided by ``normalizer`` for those names that have a timer."""
        del memory_breakdown
        known = [name for name in names if name in self.timers]
        times = [f"{n}: {self.timers[n].elapsed(reset) / normalizer:.2f}" for n in known]
        log_dist("time (ms) | " + " | ".join(times), ranks=ranks or [0])


__all__ = ["SynchronizedWallClockTimer", "trim_mean"]
