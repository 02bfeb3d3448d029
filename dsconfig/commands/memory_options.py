"""Flags about model execution that affect memory."""

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, NamedTuple

from dsconfig.commands.notes import note
from dsconfig.commands.options import fact
from dsconfig.lazy_imports import lazy_imports
from dsconfig.project.errors import UsageError

with lazy_imports():
    from dsconfig.facts import training as runs
    from dsconfig.project import run_style

if TYPE_CHECKING:
    from dsconfig.facts import Facts

Recompute = Annotated[
    str | None, fact(metavar="MODE", help="Activation recomputation: none, selective or full.")
]


class Style(NamedTuple):
    """Kernels of the run, one flag per field."""

    attention: Annotated[
        str | None,
        fact(metavar="KERNEL", help="Attention kernel: flash or eager (default: of transformers)."),
    ] = None
    fused_kernels: Annotated[
        bool, fact("--fused-kernels", help="Use fused norm, MLP and loss (Liger).")
    ] = False
    loss_kernel: Annotated[
        str | None,
        fact(
            "--loss",
            metavar="KERNEL",
            help="Loss kernel: plain, 16bit, fused, chunked or fused-linear.",
        ),
    ] = None
    master_weights: Annotated[
        str | None,
        fact(
            metavar="DTYPE",
            help="Copy of bf16 weights for the optimizer: none, fp32 or bf16 (default: fp32, or as "
            "in FILE).",
        ),
    ] = None


def with_master_weights(facts: "Facts", style: Style) -> "Facts":
    """Return the facts with ``--master-weights``. Raises UsageError.

    Prints a note for ``none``: no program whose config is checked trains this way.
    """
    kind = style.master_weights
    if kind is None:
        return facts
    if kind not in runs.MASTER_WEIGHTS:
        raise UsageError(f"--master-weights: {kind!r} is not one of none, fp32, bf16")
    if kind == "none":
        note(
            "--master-weights none: for programs that train bf16 weights directly, such as "
            "torchtune; `dsconfig run` keeps fp32 master weights"
        )
    training = facts.training or runs.TrainingFacts()
    return replace(facts, training=replace(training, master_weights=kind))


def with_style(facts: "Facts", style: Style, recompute: str | None = None) -> "Facts":
    """Return the facts with these flags as training arguments. Raises UsageError."""
    return run_style.with_style(
        facts,
        attention=style.attention,
        fused_kernels=style.fused_kernels,
        loss_kernel=style.loss_kernel,
        recompute=recompute,
    )
