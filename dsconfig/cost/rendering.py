"""Labels and JSON of estimates."""

from dataclasses import asdict
from typing import Any

from dsconfig.cost.activations import Recompute
from dsconfig.cost.choices import offload_label
from dsconfig.cost.divisions import Rejected
from dsconfig.cost.estimate import Component, Estimate, Option, TierMemory
from dsconfig.cost.limits import Limit
from dsconfig.cost.search_space import Candidate

EIGHTHS = " ▏▎▍▌▋▊▉█"


def label(option: Option) -> str:
    """Return ``stage 3, optimizer + parameters to CPU``."""
    tiers = offload_label(option.offload_optimizer, option.offload_param)
    return f"stage {option.stage}, {tiers}" if tiers else f"stage {option.stage}"


def bar(value: float, largest: float, width: int) -> str:
    """Return a bar of block characters, to an eighth of a column."""
    eighths = round(value / largest * width * 8) if largest else 0
    full, rest = divmod(eighths, 8)
    return "█" * full + (EIGHTHS[rest] if rest else "")


FORMAT_VERSION = "1.0"


def as_data(estimate: Estimate) -> dict[str, Any]:
    """Return ``{"format_version", "inputs", "options"}``, all sizes in bytes."""
    return {
        "format_version": FORMAT_VERSION,
        "inputs": dict(estimate.inputs),
        "options": [option_data(option) for option in estimate.options],
    }


def option_data(option: Option) -> dict[str, Any]:
    device = option.device
    return {
        "stage": option.stage,
        "offload_optimizer": option.offload_optimizer,
        "offload_param": option.offload_param,
        "device": {
            "peak_bytes": device.peak_bytes,
            "peak_phase": str(device.peak_phase),
            "low_bytes": device.low_bytes,
            "high_bytes": device.high_bytes,
            "reserved_bytes": device.reserved_bytes,
            "visible_bytes": device.visible_bytes,
            "needed_bytes": device.needed_bytes,
            "least_needed_bytes": device.least_needed_bytes,
            "most_needed_bytes": device.most_needed_bytes,
            "phases": {str(phase): count for phase, count in device.phase_bytes.items()},
            "components": [_component(component) for component in device.components],
        },
        "host": _tier(option.host),
        "nvme": _tier(option.nvme),
        "bucket_rule_bytes": option.bucket_rule_bytes,
        "bucket_allocated_bytes": option.bucket_allocated_bytes,
        "step": None if option.step is None else asdict(option.step),
        "fits": [asdict(fit) for fit in option.fits],
    }


def limits_data(limits: tuple[Limit, ...]) -> dict[str, Any]:
    """Return the answers of the inverse questions; ``value`` is null if nothing fits."""
    return {
        "format_version": FORMAT_VERSION,
        "limits": [
            {
                "question": limit.question,
                "value": limit.value,
                "recompute": limit.recompute is not Recompute.NONE,
                "recomputation": limit.recompute.value,
                "config": limit.candidate.config if limit.candidate else None,
                "option": option_data(limit.option) if limit.option else None,
            }
            for limit in limits
        ],
    }


def candidates_data(
    candidates: tuple[Candidate, ...], rejected: tuple[Rejected, ...] = ()
) -> dict[str, Any]:
    """Return the search results, the chosen one first; ``reason`` is empty only for it.

    ``rejected``: parallel degrees that were not tried; ``degree`` is null for a whole axis.
    """
    return {
        "format_version": FORMAT_VERSION,
        "candidates": [
            {
                "label": each.label,
                "reason": each.reason,
                "seconds_per_step": each.time.seconds,
                "seconds_per_sample": each.time.seconds_per_sample,
                "micro_batch": each.choice.micro_batch,
                "accumulation": each.choice.accumulation,
                "recompute": each.choice.recompute is not Recompute.NONE,
                "recomputation": each.choice.recompute.value,
                "bucket": each.effective.zero.reduce_bucket_size,
                "degrees": asdict(each.degrees),
                "config": each.config,
                "peak_bytes": each.option.device.peak_bytes,
                "visible_bytes": each.option.device.visible_bytes,
                "needed_bytes": each.option.device.needed_bytes,
                "host_bytes": each.option.host.bytes,
                "nvme_bytes": each.option.nvme.bytes,
            }
            for each in candidates
        ],
        "rejected_degrees": [each._asdict() for each in rejected],
    }


def _component(component: Component) -> dict[str, Any]:
    return {
        "name": component.name,
        "bytes": component.bytes,
        "pointer": component.pointer,
        "phases": [str(phase) for phase in component.phases],
        "formula": component.formula,
    }


def _tier(tier: TierMemory) -> dict[str, Any]:
    return {
        "bytes": tier.bytes,
        "peak_bytes": tier.peak_bytes,
        "pinned_bytes": tier.pinned_bytes,
        "components": [_component(component) for component in tier.components],
    }
