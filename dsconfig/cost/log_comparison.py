"""Compare a run's own figures with their predictions, and fit constants of the machine.

Three numbers are fitted, each from figures that determine it: the allocator overhead (reserved over
allocated), what a process holds outside the allocator, and the step time relative to the
prediction. Model states are never fitted: if they differ, the log is of a different run.
"""

from dataclasses import asdict, dataclass
from typing import Any

from dsconfig.cost.estimate import Option, Phase
from dsconfig.facts.run_log import RunLog
from dsconfig.report.sizes import GIB, gib

OTHER_RUN = 0.25
"""Relative difference of states after creation: padding and a bucket stay below it."""

SMALLEST_DIFFERENCE = GIB // 10
"""DeepSpeed prints hundredths of a GiB, and a bucket may differ."""

SAME_DEVICE = 0.05
"""Relative difference of memory below which two GPUs count as the same: drivers reserve a part."""

_TRAINING = (Phase.FORWARD, Phase.BACKWARD, Phase.STEP)
"""Phases whose cache belongs to training: creation leaves other blocks behind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One figure: bytes, or seconds of a step."""

    what: str
    unit: str = "bytes"
    measured: float
    predicted: float

    @property
    def error(self) -> float:
        """Return the signed error relative to the run; infinite if the run had nothing."""
        return self.predicted / self.measured - 1 if self.measured else float("inf")


@dataclass(frozen=True, slots=True)
class Fitted:
    """A constant of the machine determined by the run, with the assumed value."""

    name: str
    value: float
    assumed: float
    unit: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    figures: tuple[Figure, ...]
    fitted: tuple[Fitted, ...]
    failed: str = ""
    """What ended the run, in one sentence; empty if it did not fail."""
    is_foreign: bool = False
    """The states differ: the log is of another model, number of ranks or config."""


def compare(log: RunLog, option: Option, samples: int | None) -> Comparison:
    """Compare the log with an estimate; ``samples`` are those of one optimizer step."""
    is_foreign = _is_foreign(log, option)
    return Comparison(
        figures=tuple(_figures(log, option, samples)),
        fitted=() if is_foreign else tuple(_fitted(log, option, samples)),
        failed=_failed(log, option),
        is_foreign=is_foreign,
    )


def _is_foreign(log: RunLog, option: Option) -> bool:
    """Return whether the states after creation, when nothing else is allocated, differ."""
    measured = log.end_of(Phase.INIT)
    expected = option.device.end_bytes.get(Phase.INIT)
    if measured is None or expected is None:
        return False
    return abs(expected - measured) > max(OTHER_RUN * measured, SMALLEST_DIFFERENCE)


def _figures(log: RunLog, option: Option, samples: int | None) -> list[Figure]:
    device = option.device
    pairs: list[tuple[str, float | None, float | None]] = []
    for phase in Phase:
        pairs.append((f"peak in {phase}", log.peak(phase), device.phase_bytes.get(phase)))
        pairs.append((f"after {phase}", log.end_of(phase), device.end_bytes.get(phase)))
    pairs.append(("peak allocated", log.peak_allocated, device.peak_bytes))
    pairs.append(("nvidia-smi", log.visible, device.visible_bytes))
    found = [
        Figure(what=what, measured=measured, predicted=predicted)
        for what, measured, predicted in pairs
        if measured is not None and predicted is not None
    ]
    seconds = _step_seconds(log, samples)
    if seconds is not None and option.step is not None:
        predicted = option.step.seconds
        found.append(Figure(what="step", measured=seconds, predicted=predicted, unit="seconds"))
    return found


def _step_seconds(log: RunLog, samples: int | None) -> float | None:
    """Return the seconds by samples per second, an average over all micro steps; else by iterations
    as printed."""
    if log.samples_per_second and samples:
        return samples / log.samples_per_second
    return log.seconds_per_iteration


def _fitted(log: RunLog, option: Option, samples: int | None) -> list[Fitted]:
    found: list[Fitted] = []
    device = option.device
    training = [each for each in log.readings if each.phase in _TRAINING]
    highest = max(training, key=lambda each: each.peak, default=None)
    if highest is not None and highest.peak and highest.reserved >= highest.peak:
        margin = highest.reserved / highest.peak
        assumed = device.reserved_bytes / device.peak_bytes
        found.append(Fitted("allocator overhead", margin, assumed, "reserved over allocated"))
        if log.visible is not None and log.visible > highest.reserved:
            outside = log.visible - highest.reserved
            assumed = device.visible_bytes - device.reserved_bytes
            found.append(Fitted("outside the allocator", outside, assumed, "bytes"))
    seconds = _step_seconds(log, samples)
    if seconds and option.step is not None:
        longer = seconds / option.step.seconds
        found.append(Fitted("step time", longer, 1.0, "of the prediction"))
    return found


def _failed(log: RunLog, option: Option) -> str:
    error = log.out_of_memory
    if error is None:
        return ""
    when = f" in {error.phase}" if error.phase else ""
    allocated = "" if error.allocated is None else f" with {gib(error.allocated, 2)} allocated"
    capacity = "" if error.capacity is None else f" on a GPU with {gib(error.capacity, 2)}"
    device = option.device
    phase = error.phase or str(device.peak_phase)
    expected = device.phase_bytes.get(Phase(phase), device.peak_bytes)
    return (
        f"The run ran out of memory{when}: it tried to allocate {gib(error.tried, 2)}"
        f"{allocated}{capacity}; {gib(expected, 2)} predicted in {phase}."
        f"{_other_device(log, option)}"
    )


def _other_device(log: RunLog, option: Option) -> str:
    """Name the GPU of the estimate if the run had one with other memory."""
    error = log.out_of_memory
    capacity = None if error is None else error.capacity
    if capacity is None or not option.fits:
        return ""
    if any(abs(fit.memory_bytes - capacity) < SAME_DEVICE * capacity for fit in option.fits):
        return ""
    fit = option.fits[0]
    return f" The estimate is for {fit.device} with {gib(fit.memory_bytes, 2)}."


def as_data(comparison: Comparison) -> dict[str, Any]:
    """Return the comparison ready for JSON."""
    return asdict(comparison)
