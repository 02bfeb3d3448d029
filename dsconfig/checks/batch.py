"""Batch rules: global batch = micro batch x accumulation steps x data-parallel ranks."""

from collections.abc import Iterator
from typing import Any

from dsconfig.batch import GLOBAL, KEYS, MICRO, STEPS, Contradiction, Triple, ranks_sharing, solve
from dsconfig.checks.context import Context
from dsconfig.checks.registry import refusal, rule
from dsconfig.checks.rule import Finding
from dsconfig.report import Effect
from dsconfig.runtimes.base import AUTO
from dsconfig.runtimes.degrees import of_the_script
from dsconfig.schema.markers import integral
from dsconfig.schema.paths import ROOT

HUGE_MICRO_BATCH = 1_000_000
"""Samples per device whose activations exceed the memory of any accelerator."""


def _ranks(config: Context) -> float | None:
    """Return the number of data-parallel ranks, or None if it is not specified."""
    known = of_the_script(config.facts, config.config).data_parallel
    if known is None or config.facts.world_size is None:
        return None
    degree = config.number("sequence_parallel_size")
    is_counted = config.facts.degrees.sequence != 1 or not config.since("0.17.0")
    if degree and degree > 0 and not is_counted and not config.has("data_parallel_size"):
        return integral(ranks_sharing(known, degree))
    return known


@refusal("DSC201")
def batch_missing(config: Context) -> Iterator[Finding]:
    """Neither `train_batch_size` nor `train_micro_batch_size_per_gpu` is set

    DeepSpeed derives the missing one of the three batch values from the other two, and uses 1 for
    missing accumulation steps, but it requires one of these two keys. Without them it raises an
    AssertionError. `elasticity`, until 0.19.7, sets them itself.

    bad: {"gradient_accumulation_steps": 4}
    good: {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4}
    """
    if config.get(GLOBAL) is None and config.get(MICRO) is None and not config.is_elastic:
        yield Finding(
            path=ROOT,
            message=f"neither {GLOBAL} nor {MICRO} is set: DeepSpeed rejects the config",
            help=f'add "{MICRO}": 1 (samples per device), which works with any world size',
        )


@rule("DSC202", Effect.REFUSED, triggers=" ".join(KEYS))
def batch_not_positive(config: Context) -> Iterator[Finding]:
    """Batch value is zero or negative

    All three batch values must be at least 1.

    bad: {"train_micro_batch_size_per_gpu": 0}
    good: {"train_micro_batch_size_per_gpu": 1}
    """
    for key in KEYS:
        value = config.get(key)
        is_product = key == GLOBAL and config.as_written.get(key) == AUTO
        if isinstance(value, (int, float)) and not value > 0 and not is_product:
            yield Finding(
                path=ROOT / key,
                message=f"{key} is {value}, but must be at least 1: the config is rejected",
                help=f'set "{key}" to 1 or more, or delete it to have it derived',
            )


_NAMES = {MICRO: "micro batch", STEPS: "accumulation steps"}


@rule("DSC203", Effect.REFUSED, triggers=GLOBAL)
def batch_mismatch(config: Context) -> Iterator[Finding]:
    """Inconsistent batch values

    `train_batch_size` must equal `train_micro_batch_size_per_gpu` x
    `gradient_accumulation_steps` x the number of data-parallel ranks. DeepSpeed derives a missing
    value by floor division and checks the product afterwards, so its error message may contain
    values that are not in the config. With `--world-size` the check is exact; without it, only
    values that fail for every number of ranks are reported.

    with: gpus=8
    bad: {"train_batch_size": 32, "train_micro_batch_size_per_gpu": 3}
    good: {"train_batch_size": 32, "train_micro_batch_size_per_gpu": 4}
    """
    if config.is_elastic:
        return
    values: list[Any] = [config.get(key) for key in KEYS]
    is_open = AUTO in values
    values = [None if value == AUTO else value for value in values]
    if not all(value is None or isinstance(value, (int, float)) for value in values):
        return
    given, known = Triple(*values), _ranks(config)
    ranks = None if is_open else known
    is_product = config.as_written.get(GLOBAL) == AUTO
    if given.global_batch is None or min(given.given.values()) <= 0 or is_product:
        return
    if ranks is None:
        if given.global_batch % given.unit(1) != 0:
            others = " x ".join(_NAMES[key] for key in given.given if key != GLOBAL)
            nearest = " or ".join(map(str, given.nearest(known or 1)))
            yield Finding(
                path=ROOT / GLOBAL,
                message=f"{GLOBAL} {given.global_batch} is not a multiple of {given.unit(1)} "
                f"({others}): no number of ranks matches, and DeepSpeed rejects the config",
                help=f"delete {GLOBAL}, which is then derived from the other two and the ranks"
                + (f", or set it to {nearest}" if nearest and known else ""),
            )
        return
    solved = solve(given, ranks)
    if isinstance(solved, Contradiction):
        total, micro, steps = solved.derived
        nearest = " or ".join(map(str, given.nearest(ranks)))
        yield Finding(
            path=ROOT / GLOBAL,
            message=f"{GLOBAL} {total} is not {micro} (micro batch) x {steps} (accumulation steps) "
            f"x {ranks} (data-parallel ranks): DeepSpeed rejects the config",
            help=f"delete {GLOBAL}" + (f", or set it to {nearest}" if nearest else ""),
        )


@rule("DSC204", Effect.ALTERED, also=(Effect.REFUSED,), triggers=" ".join(KEYS))
def batch_not_integer(config: Context) -> Iterator[Finding]:
    """Batch value is not an integer

    DeepSpeed does not check the type. It computes with a fraction: 1.5 accumulation steps divide
    the loss by 1.5 and step every third micro batch. `true` counts as 1.

    bad: {"train_micro_batch_size_per_gpu": 2.5}
    good: {"train_micro_batch_size_per_gpu": 2}
    """
    for key in KEYS:
        value = config.get(key)
        if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
            yield Finding(
                path=ROOT / key,
                message=f"{key} is {_shown(value)}: DeepSpeed does not check it and computes "
                "with it",
                help="write an integer",
                dsengine_message=f"{key} is {_shown(value)}: dsengine requires an integer",
            )


def _shown(value: object) -> str:
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else str(value)


@rule("DSC205", Effect.COSTLY, triggers=MICRO)
def batch_huge(config: Context) -> Iterator[Finding]:
    """Micro batch too large for any device

    bad: {"train_micro_batch_size_per_gpu": 1000000000000}
    good: {"train_micro_batch_size_per_gpu": 16}
    """
    value = config.number(MICRO)
    if value is not None and value >= HUGE_MICRO_BATCH:
        yield Finding(
            path=ROOT / MICRO,
            message=f"{MICRO} is {value:g} samples per device: their activations exceed the "
            "memory of any device",
            help="write the number of samples per device and micro step",
        )
