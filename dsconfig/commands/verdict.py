"""The verdict of an estimate: whether it fits, by how much, and what would make it fit."""

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from dsconfig.cost.fit import TO_SPARE, host_or_disk_shortfall
from dsconfig.cost.usual import known_devices
from dsconfig.report.sizes import GIB, size

if TYPE_CHECKING:
    from dsconfig.cost.assumptions import Assumption
    from dsconfig.cost.estimate import Option
    from dsconfig.facts import Facts


def verdict(option: "Option", facts: "Facts", precision: str = "") -> str:
    """Return the verdict, such as ``Does not fit: 25.0 GiB over on each A100, in forward.``

    Without a device, names the smallest one that fits and supports ``precision``.
    """
    training = facts.training
    (fit, *_) = option.fits or (None,)
    return sentence(
        Requirement(
            option.device.needed_bytes,
            option.device.peak_phase,
            activations=training is not None and training.sequence_length is not None,
            misfit=host_or_disk_shortfall(option.host, option.nvme, facts),
            least=option.device.least_needed_bytes,
            precision=precision,
        ),
        (fit.device, fit.memory_bytes) if fit else None,
    )


class Requirement(NamedTuple):
    """Memory required per GPU (bytes), the phase of the peak, and whether it has ``activations``.

    ``misfit``: why host memory or NVMe does not suffice; empty if it does.
    ``least``: bytes with the least fragmentation observed; None if fragmentation is not counted.
    """

    bytes: int
    phase: str
    activations: bool = True
    misfit: str = ""
    least: int | None = None
    precision: str = ""


def sentence(required: Requirement, device: tuple[str, int] | None) -> str:
    """Return whether it fits a device, given as (name, usable bytes)."""
    when = f"in {required.phase}" + ("" if required.activations else ", without activations")
    misfit = required.misfit
    if device is None:
        least = "Needs" if required.activations else "Needs at least"
        smallest = _smallest_device(required) if required.activations else "; specify --seq-len"
        prefix = f"Does not fit: {misfit}. " if misfit else ""
        return f"{prefix}{least} {size(required.bytes)} per GPU, {when}{smallest}."
    name, memory = device
    left = memory - required.bytes
    most_left = memory - (required.bytes if required.least is None else required.least)
    if left < 0 <= most_left and not misfit:
        return (
            f"May not fit: {size(-left)} over on each {name} with typical fragmentation, "
            f"{size(most_left)} left with the least, {when}."
        )
    if left < 0:
        also = f"; also {misfit}" if misfit else ""
        return f"Does not fit: {size(-left)} over on each {name}, {when}{also}."
    if misfit:
        return f"Does not fit: {misfit}."
    share = f"{size(left)} ({left / memory:.0%}) left on each {name}"
    if not required.activations:
        return f"Fits without activations: {share}. Specify --seq-len to include them."
    word = "Fits, but tightly" if left < TO_SPARE * memory else "Fits"
    return f"{word}: {share} at the peak, in {required.phase}."


def _smallest_device(required: Requirement) -> str:
    """Return the smallest known GPU that fits, as the end of a sentence."""
    devices = known_devices(required.precision)
    fitting = [(memory, name) for name, memory in devices if memory >= required.bytes]
    if not fitting:
        return "; no known GPU has that much"
    memory, name = min(fitting)
    return f"; smallest GPU that fits: {math.ceil(memory / GIB)} GiB ({name})"


def assumption_line(other: "Assumption") -> str:
    """Return the effect of another assumption: ``With --loss fused it fits: 36.2 GiB.``"""
    would = "it fits" if other.fits else "it does not fit"
    return f"With {other.flag} {would}: {size(other.option.device.needed_bytes)}."


def assumption_data(others: "tuple[Assumption, ...]") -> list[dict[str, Any]]:
    """Return the effects of other assumptions in JSON form."""
    return [
        {
            "flag": other.flag,
            "fits": other.fits,
            "needed_bytes": other.option.device.needed_bytes,
        }
        for other in others
    ]
