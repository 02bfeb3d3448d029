"""Flags about how the model is run, as far as memory depends on it."""

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from dsconfig.commands.errors import UsageError
from dsconfig.commands.options import fact
from dsconfig.lazy_imports import lazy_imports

with lazy_imports():
    from dsconfig.cost import loss
    from dsconfig.facts import training as runs

if TYPE_CHECKING:
    from dsconfig.facts import Facts

Recompute = Annotated[str | None, fact(help="none, selective or full.")]


class Style(NamedTuple):
    """Kernels of the run, a flag for each."""

    attention: Annotated[str | None, fact(help="flash or eager; else as transformers does.")] = None
    fused_kernels: Annotated[
        bool, fact("--fused-kernels", help="Fused norm, MLP and loss (Liger).")
    ] = False
    loss_kernel: Annotated[
        str | None,
        fact(
            "--loss",
            metavar="KERNEL",
            help="plain (default), 16bit, fused, chunked, or fused-linear (with --fused-kernels).",
        ),
    ] = None


def with_style(facts: "Facts", style: Style, recompute: str | None = None) -> "Facts":
    """The facts with these flags among the training arguments. Raises UsageError."""
    given: dict[str, Any] = {}
    if recompute is not None:
        if recompute not in ("none", "selective", "full"):
            raise UsageError(f"--recompute: {recompute!r} is not none, selective or full")
        given["gradient_checkpointing"] = recompute
    if style.attention is not None:
        if style.attention not in ("flash", "eager"):
            raise UsageError(f"--attention: {style.attention!r} is not flash or eager")
        is_eager = style.attention == "eager"
        given["attn_implementation"] = "eager" if is_eager else "flash_attention_2"
    if style.fused_kernels:
        given["use_liger_kernel"] = True
    if style.loss_kernel is not None:
        if style.loss_kernel not in loss.NAMES:
            raise UsageError(f"--loss: {style.loss_kernel!r} is not one of {', '.join(loss.NAMES)}")
        given["loss"] = style.loss_kernel
    if not given:
        return facts
    training = facts.training or runs.TrainingFacts()
    return replace(facts, training=replace(training, arguments={**training.arguments, **given}))
