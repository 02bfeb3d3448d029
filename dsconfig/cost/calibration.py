"""Calibrate the estimate with one real run."""

from dataclasses import dataclass, replace
from types import MappingProxyType

from dsconfig.cost.estimate import Component, DeviceMemory, Estimate, Option, Phase
from dsconfig.cost.timeline import SHAPED
from dsconfig.facts.naming import named
from dsconfig.report.sizes import gib


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """``slope`` multiplies what grows with tokens, ``constant_bytes`` is added to the rest."""

    measured_bytes: int
    estimated_bytes: int
    slope: float
    constant_bytes: int

    @property
    def error(self) -> float:
        """Return the signed error of the estimate before calibration, relative to the
        measurement."""
        return self.estimated_bytes / self.measured_bytes - 1


def calibrate(option: Option, measured_bytes: int, *, what: str = "visible") -> Calibration:
    """Split the gap between estimate and measurement.

    ``what`` was measured: ``allocated``, ``reserved`` or ``visible`` (nvidia-smi). The gap is
    assigned to the part that grows with tokens, up to a factor between 0 and 2; the remainder is a
    constant. Raises ValueError if a phase would be left with nothing.
    """
    device = option.device
    estimated = {
        "allocated": device.peak_bytes,
        "reserved": device.reserved_bytes,
        "visible": device.visible_bytes,
    }[what]
    gap = measured_bytes - estimated
    loose = sum(
        part.bytes
        for part in device.components
        if part.name in SHAPED and device.peak_phase in part.phases
    )
    slope = min(2.0, max(0.0, 1 + gap / loose)) if loose else 1.0
    # Another phase may become the highest.
    phases = _phases(device, _scaled(device, slope)).values()
    constant = device.peak_bytes + gap - max(phases)
    if constant + min(phases) <= 0:
        raise ValueError(
            f"{gib(measured_bytes, 2)} measured, {gib(estimated, 2)} estimated: this is a "
            "different run, since the states of this config alone need more. Check "
            f"{named('gpus')} and the file, or specify --measured-as"
        )
    return Calibration(
        measured_bytes=measured_bytes,
        estimated_bytes=estimated,
        slope=slope,
        constant_bytes=constant,
    )


def calibrated(estimate: Estimate, calibration: Calibration) -> Estimate:
    """Return the estimate with this correction in every option."""
    options = tuple(_corrected(option, calibration) for option in estimate.options)
    inputs = MappingProxyType(
        {
            **estimate.inputs,
            "calibration": {
                "slope": calibration.slope,
                "constant_bytes": calibration.constant_bytes,
                "error_before": calibration.error,
            },
        }
    )
    return replace(estimate, options=options, inputs=inputs)


def _corrected(option: Option, calibration: Calibration) -> Option:
    device = option.device
    amount, all_phases = calibration.constant_bytes, tuple(device.phase_bytes)
    constant = Component("not explained by formulas", amount, "", "calibration", all_phases)
    components = (*_scaled(device, calibration.slope), *([constant] if amount else []))
    phases = _phases(device, components)
    peak_phase = max(phases, key=lambda phase: phases[phase])
    shift = phases[peak_phase] - device.peak_bytes
    visible, needed = device.visible_bytes + shift, device.needed_bytes + shift
    fits = tuple(
        replace(
            fit,
            fits=fit.memory_bytes >= needed,
            may_fit=fit.memory_bytes >= needed,
            headroom_bytes=fit.memory_bytes - needed,
        )
        for fit in option.fits
    )
    changed = replace(
        device,
        components=components,
        phase_bytes=MappingProxyType(phases),
        peak_bytes=phases[peak_phase],
        peak_phase=peak_phase,
        reserved_bytes=device.reserved_bytes + shift,
        visible_bytes=visible,
        needed_bytes=needed,
        least_needed_bytes=needed,
        most_needed_bytes=needed,
        low_bytes=None,
        high_bytes=None,
    )
    return replace(option, device=changed, fits=fits)


def _phases(device: DeviceMemory, components: tuple[Component, ...]) -> dict[Phase, int]:
    """Return the bytes held in each phase."""
    return {
        phase: sum(part.bytes for part in components if phase in part.phases)
        for phase in device.phase_bytes
    }


def _scaled(device: DeviceMemory, slope: float) -> tuple[Component, ...]:
    """Return the components, those that grow with tokens multiplied by the slope."""
    return tuple(
        replace(part, bytes=int(part.bytes * slope), formula=f"{part.formula}, x {slope:.2f}")
        if part.name in SHAPED
        else part
        for part in device.components
    )
