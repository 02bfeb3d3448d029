"""A run's own figures beside their predictions, and what they say of the machine.

Three numbers are fitted, each from figures that name it: the allocator's margin (reserved over
allocated), what a process holds outside the allocator, and how long a step takes beside what was
expected. Never the model's states: where those differ, the run was another one.
"""

from dataclasses import asdict, dataclass
from typing import Any

from dsconfig.cost.estimate import Option, Phase
from dsconfig.facts.run_log import RunLog
from dsconfig.report.sizes import GIB, gib

OTHER_RUN = 0.25
"""Of the states after creation: what lies between groups, padding and a bucket is less."""

SMALLEST_DIFFERENCE = GIB // 10
"""DeepSpeed prints hundredths of a GiB, and a bucket may come or go."""

_TRAINING = (Phase.FORWARD, Phase.BACKWARD, Phase.STEP)
"""Phases whose cache is that of training: creation leaves some behind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One figure: bytes, or seconds of a step."""

    what: str
    unit: str = "bytes"
    measured: float
    predicted: float

    @property
    def error(self) -> float:
        """Signed, of ours relative to the run's; infinite where the run had nothing."""
        return self.predicted / self.measured - 1 if self.measured else float("inf")


@dataclass(frozen=True, slots=True)
class Fitted:
    """A number of the machine that the run tells, beside the one that is assumed."""

    name: str
    value: float
    assumed: float
    unit: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    figures: tuple[Figure, ...]
    fitted: tuple[Fitted, ...]
    failed: str = ""
    """What ended the run, in one sentence; empty where nothing did."""
    is_foreign: bool = False
    """The states differ: the log is of another model, number of ranks or config."""


def compare(log: RunLog, option: Option, samples: int | None) -> Comparison:
    """Set the log beside a priced config; ``samples`` are those of one optimizer step."""
    is_foreign = _is_foreign(log, option)
    return Comparison(
        figures=tuple(_figures(log, option, samples)),
        fitted=() if is_foreign else tuple(_fitted(log, option, samples)),
        failed=_failed(log, option),
        is_foreign=is_foreign,
    )


def _is_foreign(log: RunLog, option: Option) -> bool:
    """Whether other states stand there after creation, when nothing else does."""
    measured = log.at_the_end_of(Phase.INIT)
    expected = option.device.end_bytes.get(Phase.INIT)
    if measured is None or expected is None:
        return False
    return abs(expected - measured) > max(OTHER_RUN * measured, SMALLEST_DIFFERENCE)


def _figures(log: RunLog, option: Option, samples: int | None) -> list[Figure]:
    device = option.device
    pairs: list[tuple[str, float | None, float | None]] = []
    for phase in Phase:
        pairs.append((f"peak in {phase}", log.peak(phase), device.phase_bytes.get(phase)))
        pairs.append((f"after {phase}", log.at_the_end_of(phase), device.end_bytes.get(phase)))
    pairs.append(("peak allocated", log.peak_allocated, device.peak_bytes))
    pairs.append(("as nvidia-smi", log.visible, device.visible_bytes))
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
    """By samples per second, whose average counts every pass; else by iterations as printed."""
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
        found.append(Fitted("allocator's margin", margin, assumed, "reserved over allocated"))
        if log.visible is not None and log.visible > highest.reserved:
            outside = log.visible - highest.reserved
            assumed = device.visible_bytes - device.reserved_bytes
            found.append(Fitted("outside the allocator", outside, assumed, "bytes"))
    seconds = _step_seconds(log, samples)
    if seconds and option.step is not None:
        longer = seconds / option.step.seconds
        found.append(Fitted("time of a step", longer, 1.0, "of what was expected"))
    return found


def _failed(log: RunLog, option: Option) -> str:
    lack = log.out_of_memory
    if lack is None:
        return ""
    when = f" in {lack.phase}" if lack.phase else ""
    held = "" if lack.allocated is None else f" beside {gib(lack.allocated, 2)} allocated"
    card = "" if lack.capacity is None else f" on a card of {gib(lack.capacity, 2)}"
    device = option.device
    phase = lack.phase or str(device.peak_phase)
    expected = device.phase_bytes.get(Phase(phase), device.peak_bytes)
    return (
        f"The run ended out of memory{when}: {gib(lack.tried, 2)} more were asked for"
        f"{held}{card}; {gib(expected, 2)} are expected in {phase}."
    )


def as_data(comparison: Comparison) -> dict[str, Any]:
    """Ready for JSON."""
    return asdict(comparison)
