"""bf16 where the device has it, else fp16 with dynamic scale, else fp32; never two."""

from typing import Any

from dsconfig.facts import DeviceFacts
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
    model = draft.facts.model
    if chosen == "fp16" and model is not None and model.trained_in == "bfloat16":
        draft.report(
            "DSC350",
            FP16,
            f"{model.name} was trained in bf16; in fp16 its activations may overflow, which "
            "shows as skipped steps while the loss scale falls",
            "use a device with bf16 (a100, h100, l4 ...), or train in fp32",
        )


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
    chosen, reason = _best(device, forbidden)
    off = f"; the config switches {' and '.join(forbidden)} off" if forbidden else ""
    inputs = {"device": device.name, "bf16": device.bf16, "fp16": device.fp16}
    return chosen, Source.HARDWARE, reason + off, inputs


def _best(device: DeviceFacts, forbidden: list[str]) -> tuple[str, str]:
    """With the reason for it."""
    if device.bf16 and "bf16" not in forbidden:
        return "bf16", f"{device.name} computes in bf16, which needs no loss scale"
    if device.fp16 and "fp16" not in forbidden:
        lacks = "" if device.bf16 else f"{device.name} has no bf16; "
        return "fp16", f"{lacks}fp16 with a dynamic loss scale"
    return "fp32", f"{device.name} is left with fp32"
