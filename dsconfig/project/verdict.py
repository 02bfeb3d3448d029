"""The verdict of an estimate: whether it fits, by how much, and what would make it fit."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from dsconfig.cost.fit import TO_SPARE, host_or_disk_shortfall
from dsconfig.cost.rendering import label
from dsconfig.cost.usual import known_devices
from dsconfig.facts.naming import named
from dsconfig.report.sizes import GIB, size

if TYPE_CHECKING:
    from dsconfig.cost.assumptions import Assumption
    from dsconfig.cost.estimate import Estimate, Option
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
        smallest = (
            _smallest_device(required) if required.activations else f"; specify {named('seq_len')}"
        )
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
        return f"Fits without activations: {share}. Specify {named('seq_len')} to include them."
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


def overall(estimate: "Estimate", facts: "Facts", is_config: bool = False) -> str:
    """Return whether a config fits, or which of the usual configurations do."""
    options, precision = estimate.options, estimate.inputs["precision"]
    if is_config:
        return verdict(options[0], facts, precision)
    fit_below = [
        option for option in options if not host_or_disk_shortfall(option.host, option.nvme, facts)
    ]
    if facts.device is None or not options[0].fits:
        smallest = replace(_smallest(fit_below or options), fits=())
        why = verdict(smallest, facts, precision)
        return f"{_closest(smallest, why, nothing_fits=not fit_below)}"
    fitting = [option for option in fit_below if option.fits[0].fits]
    without = "" if estimate.inputs["sequence_length"] else " without activations"
    if not fitting:
        smallest = _smallest(fit_below or options)
        may_fit = smallest in fit_below and smallest.fits[0].may_fit
        return _closest(smallest, verdict(smallest, facts), nothing_fits=not may_fit)
    next_step = (
        f"Specify {named('seq_len')} to include them."
        if without
        else "Run `dsconfig tune` to find the fastest."
    )
    return (
        f"{len(fitting)} of {len(options)} configurations fit{without} on each "
        f"{facts.device.name}. Least sharded: {label(fitting[0])}, "
        f"{size(fitting[0].fits[0].headroom_bytes)} left. {next_step}"
    )


_MISFIT = "Does not fit: "


def _closest(option: "Option", why: str, *, nothing_fits: bool) -> str:
    """Return the verdict of the configuration that needs least memory per GPU."""
    if nothing_fits:
        return f"Nothing fits. Closest: {label(option)}: {why.removeprefix(_MISFIT)}"
    return f"Smallest footprint: {label(option)} {why[:1].lower()}{why[1:]}"


def _smallest(options: "Sequence[Option]") -> "Option":
    return min(options, key=lambda option: option.device.needed_bytes)


def flags_to_try(facts: "Facts") -> str:
    """Return facts that change the job so that it may fit."""
    model, ways = facts.model, ["more GPUs", f"more {named('host_memory')}", named("nvme")]
    if facts.training is not None and facts.training.sequence_length is not None:
        ways += [f"a shorter {named('seq_len')}"]
    quantized = f"{named('base_weights', '4bit')} (QLoRA)"
    if model is not None and model.trainable == model.parameters:
        ways += [f"{named('lora_rank', 16)} (LoRA)", f"or that with {quantized}"]
    elif facts.base_weights is None:
        ways += [quantized]
    return ", ".join(ways)


def not_fitting(option: "Option", facts: "Facts") -> bool:
    """Return whether the specified device, host memory or NVMe space is too small."""
    if host_or_disk_shortfall(option.host, option.nvme, facts):
        return True
    return facts.device is not None and not all(fit.fits for fit in option.fits)
