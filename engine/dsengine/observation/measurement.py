"""Estimated and measured memory and time by phase, on this rank.

Time and memory are measured in two separate accumulation windows, because tracking every tensor
(needed on CPU) slows a window down.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from dsengine.communication.peers.status import IN_LOOP
from dsengine.observation.memory import LiveBytes, resident
from dsengine.observation.timers import finished_at
from dsengine.tiers.memory import MEBI

if TYPE_CHECKING:
    from dsengine.loop.engine import Engine

PHASES = (*IN_LOOP,)


@dataclass(frozen=True, slots=True)
class Measurement:
    """Peak live tensor bytes and seconds by phase of one accumulation window on one rank.

    On CUDA the bytes are the allocator's. ``resident_bytes``: RSS of the process afterwards.
    """

    seconds: Mapping[str, float]
    peak_bytes: Mapping[str, int]
    estimated_bytes: Mapping[str, int]
    resident_bytes: int

    @property
    def largest_gap(self) -> float:
        """The largest relative difference between estimate and measurement."""
        return max(
            abs(self.estimated_bytes[phase] - measured) / measured
            for phase, measured in self.peak_bytes.items()
            if phase in self.estimated_bytes
        )


def measure(engine: "Engine", window: Callable[[], None]) -> Measurement:
    """Measure ``window``, which trains exactly one accumulation window and is called twice.

    Every rank must call this. The estimate is the plan's own (``plan.memory``).
    """
    seconds: dict[str, float] = dict.fromkeys(PHASES, 0.0)
    with _wrapped_phases(engine, lambda phase: _timed(engine.device, seconds, phase)):
        window()
    live = LiveBytes(engine.device)
    live.start("between")
    with _wrapped_phases(engine, lambda phase: _inside(live, phase)):
        window()
    live.stop()
    return Measurement(
        seconds=seconds,
        peak_bytes={phase: live.peaks[phase] for phase in PHASES},
        estimated_bytes=dict(engine.plan.memory.get("phases", {})),
        resident_bytes=resident(),
    )


@contextmanager
def _wrapped_phases(engine: "Engine", during: Callable[[str], Any]) -> Iterator[None]:
    """Wrap each forward, backward and step of the engine in a context."""

    def wrap(phase: str) -> Callable[..., Any]:
        original = getattr(engine, phase)

        def call(*args: Any, **kwargs: Any) -> Any:
            with during(phase):
                return original(*args, **kwargs)

        return call

    for phase in PHASES:
        vars(engine)[phase] = wrap(phase)
    try:
        yield
    finally:
        for phase in PHASES:
            del vars(engine)[phase]


@contextmanager
def _timed(device: torch.device, seconds: dict[str, float], phase: str) -> Iterator[None]:
    started = time.perf_counter()
    yield
    seconds[phase] += finished_at(device) - started


@contextmanager
def _inside(live: LiveBytes, phase: str) -> Iterator[None]:
    live.enter(phase)
    yield
    live.enter("between")


def print_measurement(measured: Measurement) -> None:
    """Print a table on rank 0."""
    if dist.is_initialized() and dist.get_rank() != 0:
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(title="One accumulation window, rank 0", title_justify="left")
    for heading in ("phase", "estimated peak", "measured peak", "gap", "time"):
        table.add_column(heading, justify="left" if heading == "phase" else "right")
    for phase in PHASES:
        peak, expected = measured.peak_bytes[phase], measured.estimated_bytes.get(phase)
        table.add_row(
            phase,
            "-" if expected is None else f"{expected / MEBI:.1f} MiB",
            f"{peak / MEBI:.1f} MiB",
            "-" if expected is None else f"{(expected - peak) / peak:+.1%}",
            f"{measured.seconds[phase] * 1000:.0f} ms",
        )
    table.add_row("process (RSS)", "", f"{measured.resident_bytes / MEBI:.1f} MiB", "", "")
    Console(width=100).print(table)
