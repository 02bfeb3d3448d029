"""Muon."""

from collections.abc import Iterator

from dsconfig.checks.context import Context
from dsconfig.checks.registry import refusal, rule
from dsconfig.checks.rule import NOW, Finding
from dsconfig.report import Effect
from dsconfig.runtimes.base import AUTO
from dsconfig.runtimes.read_config import ZERO


@refusal("DSC621", wakes="optimizer", late=True)
def muon_with_reduce_scatter(config: Context) -> Iterator[Finding]:
    """Muon at stage 3 needs whole gradients: reduce_scatter, which is on by default, and
    quantised gradients must be off.

    bad: {"train_batch_size": 8, "zero_optimization": {"stage": 3}, "optimizer": {"type": "Muon",
        "params": {"lr": 0.02}}}
    good: {"train_batch_size": 8, "zero_optimization": {"stage": 3, "reduce_scatter": false},
        "optimizer": {"type": "Muon", "params": {"lr": 0.02}}}
    """
    if not config.is_optimizer("Muon") or config.stage != 3:
        return
    scatters = config.read(ZERO, "reduce_scatter", True)
    quantized = config.read(ZERO, "zero_quantized_gradients", False)
    if scatters or quantized:
        path = (*ZERO, "reduce_scatter")
        yield Finding(
            path=path if config.has(*path) else ("optimizer", "type"),
            message="Muon at ZeRO stage 3 does not go with "
            + ("reduce_scatter, the default" if scatters else "quantised gradients")
            + ": DeepSpeed stops when the engine is built",
            help='add "reduce_scatter": false to zero_optimization',
        )


@rule("DSC622", Effect.REFUSED, wakes="optimizer", late=True)
def muon_method(config: Context) -> Iterator[Finding]:
    """ns_method, the way Muon orthogonalises, is gram or standard.

    bad: {"train_batch_size": 8, "optimizer": {"type": "Muon", "params": {"lr": 0.02, "ns_method":
        "fast"}}}
    good: {"train_batch_size": 8, "optimizer": {"type": "Muon", "params": {"lr": 0.02, "ns_method":
        "gram"}}}
    """
    path = ("optimizer", "params", "ns_method")
    if not config.is_optimizer("Muon") or not config.has(*path):
        return
    value, known = config.get(*path), config.key_at(path)
    if known and value not in (*known.choices, AUTO):
        yield Finding(
            path=path,
            message=f"ns_method {value!r} is neither gram nor standard: {NOW}",
            help='write "gram" or "standard"',
        )
