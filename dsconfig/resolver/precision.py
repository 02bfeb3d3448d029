"""Resolve precision: bf16 if supported, else fp16 with dynamic loss scaling, else fp32."""

from typing import Any

from dsconfig.facts import DeviceFacts
from dsconfig.facts.naming import named
from dsconfig.resolver.draft import Draft
from dsconfig.resolver.resolution import Source
from dsconfig.schema.paths import BF16_ENABLED, FP16_ENABLED

_PATHS = {"bf16": BF16_ENABLED, "fp16": FP16_ENABLED}


def fill(draft: Draft) -> None:
    """Resolve ``bf16.enabled`` and ``fp16.enabled``; add the block of the chosen precision."""
    open_switches = [path for path in _PATHS.values() if draft.is_auto(path)]
    if not open_switches:
        return
    chosen, source, rule, inputs = _choice(draft)
    if chosen is None:
        draft.missing(
            open_switches[0],
            'precision is "auto", but the GPU is not specified',
            f"specify {named('device')} (a100-80gb, v100-16gb, cpu ...) or {named('precision')}",
        )
        return
    for name, path in _PATHS.items():
        if draft.is_auto(path) or (name == chosen and not draft.is_set(path) and draft.takes(path)):
            draft.set(path, name == chosen, source, rule, **inputs)
    model = draft.facts.model
    if chosen == "fp16" and model is not None and model.trained_in == "bfloat16":
        draft.report(
            "DSC350",
            FP16_ENABLED,
            f"{model.name} was trained in bf16; in fp16 its activations may overflow, which "
            "causes skipped steps and a falling loss scale",
            "use a GPU with bf16 (a100, h100, l4 ...), or train in fp32",
        )


def _choice(draft: Draft) -> tuple[str | None, Source, str, dict[str, Any]]:
    explicit = next((name for name, path in _PATHS.items() if draft.given(path) is True), None)
    if explicit is not None:
        rule = f"{explicit}.enabled is true in the config, and bf16 and fp16 are mutually exclusive"
        return explicit, Source.CONFIG, rule, {}
    forbidden = [
        name for name, path in _PATHS.items() if draft.given(path) is False or not draft.takes(path)
    ]
    requested = draft.facts.training.precision if draft.facts.training else None
    if requested is not None:
        rule = f"training run uses {requested}"
        return requested, Source.TRAINING, rule, {"precision": requested}
    device = draft.facts.device
    if device is None:
        return None, Source.HARDWARE, "", {}
    chosen, reason = _best(device, forbidden)
    off = f"; {' and '.join(forbidden)} disabled in the config" if forbidden else ""
    inputs = {"device": device.name, "bf16": device.bf16, "fp16": device.fp16}
    return chosen, Source.HARDWARE, reason + off, inputs


def _best(device: DeviceFacts, forbidden: list[str]) -> tuple[str, str]:
    """Return the best available precision and the reason."""
    if device.bf16 and "bf16" not in forbidden:
        return "bf16", f"{device.name} supports bf16, which does not need loss scaling"
    if device.fp16 and "fp16" not in forbidden:
        unsupported = "" if device.bf16 else f"{device.name} does not support bf16; "
        return "fp16", f"{unsupported}fp16 with dynamic loss scaling"
    return "fp32", f"no half precision available on {device.name}"
