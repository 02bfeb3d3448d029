"""Flags about how the model is run, as far as memory depends on it."""

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from dsconfig.commands.errors import UsageError, usage
from dsconfig.commands.options import fact
from dsconfig.lazy_imports import lazy_imports

with lazy_imports():
    from dsconfig.cost import loss
    from dsconfig.facts import adapters, inputs
    from dsconfig.facts import training as runs

if TYPE_CHECKING:
    from dsconfig.facts import Facts

Recompute = Annotated[str | None, fact(help="none, selective or full.")]


class Style(NamedTuple):
    """How the model is run and what of it is trained, a flag for each."""

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
    trainable: Annotated[str | None, fact(help="Trainable parameters of a frozen model: 20M.")] = (
        None
    )
    lora_rank: Annotated[
        int | None, fact(min=1, help="Rank of adapters beside a frozen model.")
    ] = None
    lora_targets: Annotated[
        str | None,
        fact(metavar="NAMES", help="What they stand beside: q_proj,v_proj; else every linear map."),
    ] = None
    lora_dropout: Annotated[float, fact(min=0.0, max=1.0, help="Dropout of adapters.")] = 0.0


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


def with_adapters(facts: "Facts", style: Style) -> "Facts":
    """The facts with a frozen model, and adapters of the rank in it. Raises UsageError."""
    rank, targets = style.lora_rank, style.lora_targets
    if rank is None:
        if targets is not None or style.lora_dropout:
            raise UsageError("--lora-targets and --lora-dropout tell of adapters: give --lora-rank")
        return facts
    if facts.model is None:
        raise UsageError(facts.why_no_model if facts.outline else "--lora-rank needs --model")
    every = adapters.ALL_LINEAR if targets is None else targets
    names = [each.strip() for each in every.split(",") if each.strip()]
    with usage():
        model = adapters.with_adapters(facts.model, rank, names, dropout=style.lora_dropout > 0)
    return replace(facts, model=model)


def with_trainable(facts: "Facts", style: Style) -> "Facts":
    """The facts with all but the trainable parameters frozen. Raises UsageError."""
    trainable = style.trainable
    if trainable is None:
        return facts
    if facts.model is None:
        needed = "--trainable needs the model: give --model or --params"
        raise UsageError(facts.why_no_model if facts.outline else needed)
    if adapters.adapters_of(facts.model) is not None:
        raise UsageError("--trainable: the adapters in the model say already what is trained")
    with usage():
        count = inputs.parse_count(trainable, "--trainable")
    if count > facts.model.parameters:
        raise UsageError(
            f"--trainable: {trainable} is more than the model's {facts.model.parameters}"
        )
    # Which tensors they are is not known: adapters of equal size in every block are assumed.
    assumed = (*facts.model.assumed, f"{count} trainable parameters, alike in every block")
    model = replace(facts.model, trainable=count, root=None, assumed=assumed)
    return replace(facts, model=model)
