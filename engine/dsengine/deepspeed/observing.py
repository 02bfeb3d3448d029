"""Logs, timers and FLOPs of scripts, without an engine."""

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import dsconfig
from dsconfig.features.table import FEATURES
from dsengine.deepspeed.accelerators import get_accelerator
from dsengine.observation.flops import FlopsProfile
from dsengine.observation.printing import configure_script_logger, script_logger
from dsengine.topology import rank

logger = script_logger
"""Logs INFO and above to standard output; unchanged if logging is already configured."""
configure_script_logger()


def log_dist(
    message: object, ranks: Sequence[int] | None = None, level: int = logging.INFO
) -> None:
    """Log ``message`` on the given ranks: [-1] means all of them, None or [] none.

    Without a process group, every process logs.
    """
    if _is_selected(ranks):
        logger.log(level, "[Rank %d] %s", _rank(), message)


def print_dist(message: object, ranks: Sequence[int] | None = None) -> None:
    """Print ``message`` on the given ranks, selected as by ``log_dist``."""
    if _is_selected(ranks):
        print(f"[Rank {_rank()}] {message}", flush=True)


def set_log_level_from_string(
    log_level_str: str, custom_logger: logging.Logger | None = None
) -> None:
    """Set the level of a logger (default: this one) by name.

    Raises ValueError unless it is one of ``debug`` to ``critical``.
    """
    level = logging.getLevelNamesMapping().get(log_level_str.upper())
    if level is None:
        raise ValueError(f"{log_level_str!r}: use debug, info, warning, error or critical")
    target = logger if custom_logger is None else custom_logger
    target.setLevel(level)
    for handler in target.handlers:
        handler.setLevel(level)


@cache
def warning_once(message: str) -> None:
    """Log a warning, only once per message."""
    logger.warning(message)


def _rank() -> int:
    return rank() if dist.is_initialized() else -1


def _is_selected(ranks: Sequence[int] | None) -> bool:
    return not dist.is_initialized() or -1 in (ranks or ()) or rank() in (ranks or ())


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


def get_model_profile(
    model: nn.Module,
    input_shape: tuple[int, ...] | None = None,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    print_profile: bool = True,
    detailed: bool = True,
    module_depth: int = -1,
    top_modules: int = 1,
    warm_up: int = 1,
    as_string: bool = True,
    output_file: str | None = None,
    ignore_modules: Any = None,
    mode: str = "forward",
) -> tuple[Any, Any, Any]:
    """Return (FLOPs, multiply-adds, parameters) of ``model(*args, **kwargs)``, in evaluation mode.

    ``input_shape`` requests a single tensor of zeros; ``mode="generate"`` calls that method.
    Matrix products, convolutions and attention are counted, with two FLOPs per multiply-add;
    DeepSpeed adds those of elementwise functions. Returns numbers, or strings such as "1.50 G".
    Raises ValueError without inputs, and for ``ignore_modules``.
    """
    if ignore_modules is not None:
        raise ValueError(FEATURES["ignored_modules"].text)
    if input_shape is not None:
        like = next(model.parameters(), torch.empty(0))
        args = (torch.zeros(input_shape, dtype=like.dtype, device=like.device),)
    elif not args and not kwargs:
        raise ValueError("get_model_profile() requires inputs of the model: args or kwargs")
    settings = {
        "module_depth": module_depth,
        "top_modules": top_modules,
        "detailed": detailed,
        "output_file": output_file,
    }
    profile = FlopsProfile(dsconfig.block_values("flops_profiler", settings), model)
    call = model if mode == "forward" else getattr(model, mode)
    was_training = model.training
    model.eval()
    with torch.no_grad():
        for _ in range(warm_up):
            call(*args, **(kwargs or {}))
        with profile.counting():
            call(*args, **(kwargs or {}))
    model.train(was_training)
    if print_profile and not profile.write():
        print(profile.report(), flush=True)
    counts = (profile.flops, profile.flops // 2, sum(p.numel() for p in model.parameters()))
    return tuple(_format(count) for count in counts) if as_string else counts  # type: ignore[return-value]


def _format(count: int) -> str:
    for size, unit in ((10**12, "T"), (10**9, "G"), (10**6, "M"), (10**3, "K")):
        if count >= size:
            return f"{count / size:.2f} {unit}"
    return str(count)
