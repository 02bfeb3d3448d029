"""How the model is run, as far as it affects memory: kernels and recomputation."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dsconfig.lazy_imports import lazy_imports
from dsconfig.project.errors import UsageError

with lazy_imports():
    from dsconfig.cost import loss
    from dsconfig.facts import training as runs

if TYPE_CHECKING:
    from dsconfig.facts import Facts


def with_style(
    facts: "Facts",
    *,
    attention: str | None = None,
    fused_kernels: bool = False,
    loss_kernel: str | None = None,
    recompute: str | None = None,
) -> "Facts":
    """Return the facts with these settings as training arguments. Raises UsageError."""
    arguments: dict[str, Any] = {}
    if recompute is not None:
        if recompute not in ("none", "selective", "full"):
            raise UsageError(f"--recompute: {recompute!r} is not one of none, selective, full")
        arguments["gradient_checkpointing"] = recompute
    if attention is not None:
        if attention not in ("flash", "eager"):
            raise UsageError(f"--attention: {attention!r} is not one of flash, eager")
        is_eager = attention == "eager"
        arguments["attn_implementation"] = "eager" if is_eager else "flash_attention_2"
    if fused_kernels:
        arguments["use_liger_kernel"] = True
    if loss_kernel is not None:
        if loss_kernel not in loss.NAMES:
            raise UsageError(f"--loss: {loss_kernel!r} is not one of {', '.join(loss.NAMES)}")
        arguments["loss"] = loss_kernel
    if not arguments:
        return facts
    training = facts.training or runs.TrainingFacts()
    return replace(facts, training=replace(training, arguments={**training.arguments, **arguments}))
