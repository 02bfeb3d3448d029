"""Batch: global batch = micro batch x accumulation x data-parallel ranks."""

from collections.abc import Iterator
from typing import Any

from dsconfig.batch import GLOBAL, KEYS, MICRO, Contradiction, Triple, ranks_sharing, solve
from dsconfig.checks.context import Context
from dsconfig.checks.registry import refusal, rule
from dsconfig.checks.rule import Finding
from dsconfig.report import Effect
from dsconfig.schema.markers import integral

HUGE_MICRO_BATCH = 1_000_000
"""Samples on one device; no accelerator holds the activations of so many."""


def _ranks(config: Context) -> float | None:
    """The data-parallel ranks; None where nobody said how many."""
    known = config.facts.data_parallel
    if known is None or config.facts.world_size is None:
        return None
    degree = config.number("sequence_parallel_size")
    told = config.facts.sequence_parallel != 1 or not config.since("0.17.0")
    if degree and degree > 0 and not told and not config.has("data_parallel_size"):
        return integral(ranks_sharing(known, degree))
    return known


@refusal("DSC201")
def batch_missing(config: Context) -> Iterator[Finding]:
    """Neither the global nor the micro batch is given.

    DeepSpeed derives the third of the three batch numbers from the other two and takes 1
    for a missing accumulation, but it has to be told either `train_batch_size` or
    `train_micro_batch_size_per_gpu`. Without both it stops with an AssertionError.

    bad: {"gradient_accumulation_steps": 4}
    good: {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4}
    """
    if config.get(GLOBAL) is None and config.get(MICRO) is None:
        yield Finding(
            path=(),
            message=f"neither {GLOBAL} nor {MICRO} is set: DeepSpeed stops while reading the file",
            help=f'add "{MICRO}": 1 (samples per device); the file then works at any world size',
        )


@rule("DSC202", Effect.REFUSED, triggers=" ".join(KEYS))
def batch_not_positive(config: Context) -> Iterator[Finding]:
    """A batch number is zero or negative. All three must be at least 1.

    bad: {"train_micro_batch_size_per_gpu": 0}
    good: {"train_micro_batch_size_per_gpu": 1}
    """
    for key in KEYS:
        value = config.get(key)
        if isinstance(value, (int, float)) and not value > 0:
            yield Finding(
                path=(key,),
                message=f"{key} is {value}: the program stops, it must be at least 1",
                help=f'write "{key}": 1 or more, or leave the key out to have it derived',
            )


@rule("DSC203", Effect.REFUSED, triggers=GLOBAL)
def batch_mismatch(config: Context) -> Iterator[Finding]:
    """The batch numbers contradict each other.

    `train_batch_size` must equal `train_micro_batch_size_per_gpu` x
    `gradient_accumulation_steps` x the number of data-parallel ranks. A missing number is
    derived by floor division and the product checked afterwards, so a global batch that
    does not divide is refused with numbers nobody wrote. With a known world size
    (`--world-size`) the check is exact; without one only what fails on every number of
    ranks is reported.

    with: world_size=8
    bad: {"train_batch_size": 32, "train_micro_batch_size_per_gpu": 3}
    good: {"train_batch_size": 32, "train_micro_batch_size_per_gpu": 4}
    """
    values: list[Any] = [config.get(key) for key in KEYS]
    if not all(value is None or isinstance(value, (int, float)) for value in values):
        return
    given, ranks = Triple(*values), _ranks(config)
    if given.global_batch is None or min(given.given.values()) <= 0:
        return
    if ranks is None:
        if given.global_batch % given.unit(1) != 0:
            yield Finding(
                path=(GLOBAL,),
                message=f"{GLOBAL} {given.global_batch} is not a multiple of {given.unit(1)} "
                "(micro batch x accumulation): no number of ranks makes the product right, and "
                "DeepSpeed stops",
                help=f"leave {GLOBAL} out; it is derived from the other two and the world size",
            )
        return
    solved = solve(given, ranks)
    if isinstance(solved, Contradiction):
        total, micro, steps = solved.derived
        nearest = " or ".join(map(str, given.nearest(ranks)))
        yield Finding(
            path=(GLOBAL,),
            message=f"{GLOBAL} {total} is not {micro} (micro batch) x {steps} (accumulation) "
            f"x {ranks} (data-parallel ranks): DeepSpeed stops while reading the file",
            help=f"leave {GLOBAL} out" + (f", or write {nearest}" if nearest else ""),
        )


@rule("DSC204", Effect.ALTERED, also=(Effect.REFUSED,), triggers=" ".join(KEYS))
def batch_not_whole(config: Context) -> Iterator[Finding]:
    """A batch number has a fraction, or is a bool.

    DeepSpeed does not check the type. A fraction is kept and takes part in the arithmetic:
    an accumulation of 1.5 divides the loss by 1.5 and steps every third micro batch; `true`
    counts as 1.

    bad: {"train_micro_batch_size_per_gpu": 2.5}
    good: {"train_micro_batch_size_per_gpu": 2}
    """
    for key in KEYS:
        value = config.get(key)
        if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
            yield Finding(
                path=(key,),
                message=f"{key} is {_shown(value)}: it is kept and counted with as it is",
                help="write a whole number",
                dsengine_message=f"{key} is {_shown(value)}: dsengine requires integers",
            )


def _shown(value: object) -> str:
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else str(value)


@rule("DSC205", Effect.COSTLY, triggers=MICRO)
def batch_huge(config: Context) -> Iterator[Finding]:
    """A micro batch so large that no device holds its activations.

    bad: {"train_micro_batch_size_per_gpu": 1000000000000}
    good: {"train_micro_batch_size_per_gpu": 16}
    """
    value = config.number(MICRO)
    if value is not None and value >= HUGE_MICRO_BATCH:
        yield Finding(
            path=(MICRO,),
            message=f"{MICRO} is {value:g} samples per device: the activations of "
            "so many are more than a device holds",
            help="write the number of samples one device runs at a time",
        )
