"""bf16 where the device has it, else fp16 with dynamic scale, else fp32; never two."""

from typing import Any

from dsconfig.facts import DeviceFacts, Facts
from dsconfig.resolver.draft import Draft
from dsconfig.resolver.resolution import Source

BF16, FP16 = "bf16.enabled", "fp16.enabled"
_PATHS = {"bf16": BF16, "fp16": FP16}


def fill(draft: Draft) -> None:
    """Settle the two switches; a block that the choice needs is added."""
    open_switches = [path for path in (BF16, FP16) if draft.is_auto(path)]
    if not open_switches:
        return
    chosen, source, rule, inputs = _choice(draft)
    if chosen is None:
        draft.missing(
            open_switches[0],
            'precision is "auto" and the device is unknown, so nothing says what it can compute in',
            "give --device (a100-80gb, v100-16gb, cpu ...) or --precision",
        )
        return
    for name, path in _PATHS.items():
        if draft.is_auto(path) or (name == chosen and not draft.has(path) and draft.takes(path)):
            draft.fill(path, name == chosen, source, rule, **inputs)
    _warn(draft, chosen)


def _choice(draft: Draft) -> tuple[str | None, Source, str, dict[str, Any]]:
    explicit = next((name for name, path in _PATHS.items() if draft.value(path) is True), None)
    if explicit is not None:
        rule = f"{explicit}.enabled is true in the config, and only one half precision can be on"
        return explicit, Source.CONFIG, rule, {}
    forbidden = [
        name for name, path in _PATHS.items() if draft.value(path) is False or not draft.takes(path)
    ]
    asked = draft.facts.training.precision if draft.facts.training else None
    if asked is not None:
        rule = f"the training run asks for {asked}"
        return asked, Source.TRAINING, rule, {"precision": asked}
    device = draft.facts.device
    if device is None:
        return None, Source.HARDWARE, "", {}
    chosen = _best(device, forbidden)
    inputs = {"device": device.name, "bf16": device.bf16, "fp16": device.fp16}
    return chosen, Source.HARDWARE, _reason(chosen, device, forbidden), inputs


def _best(device: DeviceFacts, forbidden: list[str]) -> str:
    if device.bf16 and "bf16" not in forbidden:
        return "bf16"
    return "fp16" if device.fp16 and "fp16" not in forbidden else "fp32"


def _reason(chosen: str, device: DeviceFacts, forbidden: list[str]) -> str:
    off = f"; the config switches {' and '.join(forbidden)} off" if forbidden else ""
    if chosen == "bf16":
        return f"{device.name} computes in bf16, which needs no loss scale{off}"
    if chosen == "fp16":
        lacks = "" if device.bf16 else f"{device.name} has no bf16; "
        return f"{lacks}fp16 with a dynamic loss scale{off}"
    return f"{device.name} is left with fp32{off}"


def _warn(draft: Draft, chosen: str) -> None:
    """Say so when weights trained in bf16 are to run in fp16: their range does not fit."""
    facts: Facts = draft.facts
    if chosen != "fp16" or facts.model is None or facts.model.trained_in != "bfloat16":
        return
    draft.report(
        "DSC350",
        FP16,
        f"{facts.model.name} was trained in bf16; in fp16 its activations may overflow, which "
        "shows as skipped steps while the loss scale falls",
        "use a device with bf16 (a100, h100, l4 ...), or train in fp32",
    )
