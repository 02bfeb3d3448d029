"""Releases of DeepSpeed that are known to train something else with a config, or may.

Each fault was found in the thread that its message names and then read in DeepSpeed's own sources
at the first release with the faulty lines, at the last one, and at the release that cured it;
``tests/checks/record_known_faults.py`` looks for the lines in a clone and prints the ranges again.
What the config decides is ``altered``; what takes a script, a card or a race as well is a note.
"""

from collections.abc import Callable, Iterator
from functools import wraps
from typing import NamedTuple

from dsconfig.batch import GLOBAL, MICRO, STEPS, Triple
from dsconfig.checks.context import Context
from dsconfig.checks.registry import rule
from dsconfig.checks.rule import AppliesTo, Finding, Path, reaches_deepspeed
from dsconfig.lazy_imports import lazy_imports
from dsconfig.report import Effect
from dsconfig.runtimes.base import AUTO
from dsconfig.runtimes.read_config import ZERO
from dsconfig.schema.version import Version

with lazy_imports():
    from dsconfig.facts import training as runs

DEEPSPEED = "DeepSpeed"
STAGE: Path = (*ZERO, "stage")


class FaultFinding(NamedTuple):
    """A place and what goes wrong there; ``sure`` where the config alone decides it."""

    path: Path
    said: str
    sure: bool = True


Fault = Callable[[Context], Iterator[FaultFinding]]


def fault(
    code: str,
    span: str,
    thread: str,
    remedy: str,
    *,
    effect: Effect = Effect.ALTERED,
    triggers: str = "zero_optimization",
    program: str = DEEPSPEED,
    applies_to: AppliesTo = reaches_deepspeed,
) -> Callable[[Fault], Fault]:
    """Make a rule of what the releases of a ``span`` do, from the first to the last that does it.

    Those of another ``program`` than DeepSpeed are told where the facts name its release.
    """
    start, end = map(Version.parse, span.split(" to "))

    def declare(find: Fault) -> Fault:
        @wraps(find)
        def check(config: Context) -> Iterator[Finding]:
            known = config.facts.releases.get(program)
            release = Version.parse(known) if known else None
            if program == DEEPSPEED:
                release = config.version
            if release is None or not start <= release <= end:
                return
            for told in find(config):
                yield Finding(
                    path=told.path,
                    message=f"{program} {span} {told.said} ({thread})",
                    help=remedy,
                    effect=None if told.sure else Effect.NOTE,
                )

        also = () if effect is Effect.NOTE else (Effect.NOTE,)
        rule(code, effect, triggers=triggers, also=also, applies_to=applies_to)(check)
        if program == DEEPSPEED:
            RANGES[code] = (start, end)
        return find

    return declare


RANGES: dict[str, tuple[Version, Version]] = {}
"""The first and last release with each fault, by code."""


def _accumulation(config: Context) -> float | None:
    """Micro steps of a step; None where a program fills them in, or the ranks decide."""
    steps = config.number(STEPS)
    if steps is not None:
        return steps
    total, micro = config.number(GLOBAL), config.number(MICRO)
    if AUTO in (config.get(STEPS), config.get(GLOBAL), config.get(MICRO)):
        # The Trainer fills it in: by its default where arguments were given and do not say.
        training = config.facts.training
        given = training.gradient_accumulation_steps if training is not None else None
        default = runs.DEFAULTS[STEPS] if training is not None and training.arguments else None
        return given or default
    if total is None or micro is None or not micro:
        return 1
    ranks = config.facts.data_parallel
    solved = Triple(total, micro, None).derived(ranks) if ranks else None
    return solved.accumulation if solved is not None else None


def lost_steps(config: Context, path: Path, said: str, beyond: int) -> Iterator[FaultFinding]:
    """A fault that shows with more micro steps than ``beyond``."""
    steps = _accumulation(config)
    if steps is None:
        where = "where it accumulates" if beyond == 1 else f"with more than {beyond} micro steps"
        yield FaultFinding(path, f"{said}, {where}", sure=False)
    elif steps > beyond:
        yield FaultFinding(path, said)


def _offloads(config: Context) -> bool:
    return config.offload("offload_optimizer") != "none"


def _clips(config: Context) -> bool:
    return (config.number("gradient_clipping") or 0) > 0


@fault("DSC830", "0.17.6 to 0.18.2", "deepspeedai/DeepSpeed#7718", "use DeepSpeed 0.18.3 or later")
def accumulation_lost_at_stage_2(config: Context) -> Iterator[FaultFinding]:
    """0.17.6 to 0.18.2 keep the gradient of the last micro step alone at stage 2.

    The sums of a step are made anew at each micro step, since what tells that there are some is set
    at the boundary only. Norms come out smaller, and gradient accumulation trains worse. Offloaded
    optimizers take another road.

    with: version="0.18.0"
    bad: {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 8,
        "zero_optimization": {"stage": 2}}
    good: {"train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": 1,
        "zero_optimization": {"stage": 2}}
    """
    if config.stage == 2 and not _offloads(config):
        said = "drop the gradients of every micro step but the last at stage 2"
        yield from lost_steps(config, STAGE, said, 1)


@fault(
    "DSC831",
    "0.8.0 to 0.15.1",
    "deepspeedai/DeepSpeed#6550",
    "use DeepSpeed 0.19.0 or later, or offload nothing while accumulating",
)
def offloaded_accumulation_wrong(config: Context) -> Iterator[FaultFinding]:
    """Up to 0.15.1, gradients of an optimizer offloaded at stage 2 are summed wrongly.

    The number of the micro step starts at 0 in the first step and at -1 in later ones, and the sums
    are copied over at steps that are no boundary.

    with: version="0.14.4"
    bad: {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 4,
        "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}
    good: {"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 1,
        "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}
    """
    if config.stage == 2 and _offloads(config):
        said = "sum the gradients of micro steps wrongly where the optimizer is offloaded"
        yield from lost_steps(config, (*ZERO, "offload_optimizer"), said, 1)


@fault(
    "DSC832",
    "0.15.2 to 0.18.9",
    "deepspeedai/DeepSpeed#7967",
    "use DeepSpeed 0.19.0 or later, or accumulate over two micro steps at most",
)
def offloaded_micro_steps_dropped(config: Context) -> Iterator[FaultFinding]:
    """0.15.2 to 0.18.9 drop the gradients of micro steps between the first and the last.

    With an optimizer offloaded at stage 2, sums go to main memory at the first micro step of a
    step only, so that what later ones add is lost but for the last. Norms come out smaller.

    with: version="0.16.4"
    bad: {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 8,
        "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}
    good: {"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2,
        "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}
    """
    if config.stage == 2 and _offloads(config):
        said = "drop the gradients of all micro steps between the first and the last"
        yield from lost_steps(config, (*ZERO, "offload_optimizer"), said, 2)


@fault(
    "DSC833",
    "0.8.1 to 0.14.2",
    "deepspeedai/DeepSpeed#5606, deepspeedai/DeepSpeed#5545",
    'use DeepSpeed 0.14.3 or later, or "overlap_comm": false',
    effect=Effect.NOTE,
)
def overlap_overwrites_bucket(config: Context) -> Iterator[FaultFinding]:
    """Up to 0.14.2, overlap_comm at stages 1 and 2 may overwrite a bucket that is still reduced.

    The stream of the computation does not wait for that of the reduction, so gradients are wrong
    where communication is slower than backward.

    with: version="0.14.2"
    bad: {"train_batch_size": 8, "zero_optimization": {"stage": 2, "overlap_comm": true}}
    good: {"train_batch_size": 8, "zero_optimization": {"stage": 2, "overlap_comm": false}}
    """
    if config.stage in (1, 2) and config.overlap_comm:
        said = "may overwrite gradients that are still being reduced, on slow links above all"
        yield FaultFinding((*ZERO, "overlap_comm"), said)


@fault(
    "DSC834",
    "0.12.4 to 0.18.9",
    "deepspeedai/DeepSpeed#7965",
    'use DeepSpeed 0.19.0 or later, or "overlap_comm": false',
    effect=Effect.NOTE,
)
def overlap_recycles_buffer(config: Context) -> Iterator[FaultFinding]:
    """0.12.4 to 0.18.9 may hand the memory of a reduction to others before it is done.

    With overlap_comm at stages 1 and 2 the stream of the reduction is not noted on its buffers.
    Seen as a loss that becomes NaN at stage 2 alone.

    with: version="0.18.0"
    bad: {"train_batch_size": 8, "zero_optimization": {"stage": 2, "overlap_comm": true}}
    good: {"train_batch_size": 8, "zero_optimization": {"stage": 2, "overlap_comm": false}}
    """
    if config.stage in (1, 2) and config.overlap_comm:
        said = "may reuse the memory of a reduction that is under way: the loss can become NaN"
        yield FaultFinding((*ZERO, "overlap_comm"), said)


@fault(
    "DSC835",
    "0.9.0 to 0.18.7",
    "deepspeedai/DeepSpeed#7898",
    "use DeepSpeed 0.18.8 or later, or a torch before 2.10",
    effect=Effect.NOTE,
)
def stage_3_waits_for_wrong_stream(config: Context) -> Iterator[FaultFinding]:
    """Up to 0.18.7, stage 3 copies gradients after a wait for the default stream.

    From torch 2.10 on backward runs on another one, and weights become NaN at random.

    with: version="0.18.7"
    bad: {"train_batch_size": 8, "zero_optimization": {"stage": 3}}
    good: {"train_batch_size": 8, "zero_optimization": {"stage": 2}}
    """
    if config.stage == 3:
        said = "let weights become NaN at random at stage 3 with torch 2.10 or later"
        yield FaultFinding(STAGE, said)


@fault(
    "DSC836",
    "0.18.3 to 0.18.9",
    "deepspeedai/DeepSpeed#7985",
    'use DeepSpeed 0.19.0 or later, or "immediate_grad_update": true in bf16',
    triggers="data_types",
)
def last_micro_step_not_reduced(config: Context) -> Iterator[FaultFinding]:
    """0.18.3 to 0.18.9 leave the last micro step out of the average in bf16 at stage 1.

    With sums in fp32 the gradient of the micro step at the boundary is added after the reduction,
    so each rank keeps its own.

    with: version="0.18.5"
    bad: {"train_batch_size": 8, "bf16": {"enabled": true}, "zero_optimization": {"stage": 1},
        "data_types": {"grad_accum_dtype": "fp32"}}
    good: {"train_batch_size": 8, "bf16": {"enabled": true}, "zero_optimization": {"stage": 2},
        "data_types": {"grad_accum_dtype": "fp32"}}
    """
    sums = config.get("data_types", "grad_accum_dtype")
    early = config.is_on((config.bf16_block,), "immediate_grad_update")
    if config.stage == 1 and config.bf16 and sums in ("fp32", "float32") and not early:
        said = "do not reduce the gradient of the last micro step, so that ranks drift apart"
        yield FaultFinding(("data_types", "grad_accum_dtype"), said)


@fault(
    "DSC837",
    "0.18.5 to 0.18.5",
    "deepspeedai/DeepSpeed#7839",
    "use DeepSpeed 0.18.6 or later, or stage 1",
    triggers="bf16 bfloat16",
)
def bf16_divided_at_stage_0(config: Context) -> Iterator[FaultFinding]:
    """0.18.5 divides bf16 gradients of stage 0 by a loss scale that nobody applied.

    They also pile up, since nobody clears them.

    with: version="0.18.5"
    bad: {"train_batch_size": 8, "bf16": {"enabled": true}}
    good: {"train_batch_size": 8, "bf16": {"enabled": true}, "zero_optimization": {"stage": 1}}
    """
    if config.stage == 0 and config.stage_is_known and config.bf16:
        said = "divide gradients by 65536 and never clear them in bf16 at stage 0"
        yield FaultFinding((config.bf16_block,), said)


@fault(
    "DSC838",
    "0.8.0 to 0.13.2",
    "deepspeedai/DeepSpeed#5170",
    "use DeepSpeed 0.13.3 or later, or stage 1",
    triggers="bf16 bfloat16",
)
def bf16_not_reduced_at_stage_0(config: Context) -> Iterator[FaultFinding]:
    """Up to 0.13.2, stage 0 in bf16 reduces gradients that are not those of the step.

    The optimizer adds them to sums of its own right after backward, and the reduction takes the
    bf16 copies: ranks train apart.

    with: version="0.12.6"
    bad: {"train_batch_size": 8, "bf16": {"enabled": true}}
    good: {"train_batch_size": 8, "bf16": {"enabled": true}, "zero_optimization": {"stage": 1}}
    """
    alone = config.facts.world_size == 1
    if config.stage == 0 and config.stage_is_known and config.bf16 and not alone:
        said = "do not reduce the gradients that the step takes in bf16 at stage 0"
        yield FaultFinding((config.bf16_block,), said)


@fault(
    "DSC839",
    "0.13.2 to 0.13.2",
    "deepspeedai/DeepSpeed#5150",
    "use DeepSpeed 0.13.3 or later",
    triggers="gradient_clipping",
)
def clipping_inverted(config: Context) -> Iterator[FaultFinding]:
    """0.13.2 multiplies small gradients up and leaves large ones as they are.

    In fp32 at stage 0 the factor is the larger of 1 and threshold / norm, not the smaller.

    with: version="0.13.2"
    bad: {"train_batch_size": 8, "gradient_clipping": 1.0}
    good: {"train_batch_size": 8, "gradient_clipping": 1.0, "zero_optimization": {"stage": 1}}
    """
    in_fp32 = not (config.bf16 or config.fp16)
    if config.stage == 0 and config.stage_is_known and in_fp32 and _clips(config):
        said = "raise small gradients to the threshold and clip none at stage 0"
        yield FaultFinding(("gradient_clipping",), said)


@fault(
    "DSC840",
    "0.13.2 to 0.16.5",
    "deepspeedai/DeepSpeed#7171",
    "use DeepSpeed 0.16.6 or later",
    effect=Effect.NOTE,
    triggers="gradient_clipping",
)
def overflow_makes_norm_nan(config: Context) -> Iterator[FaultFinding]:
    """0.13.2 to 0.16.5 make a NaN of an infinite norm at stages 1 and 2.

    Zero times infinity stands in the sum that was to replace it, and clipping then multiplies all
    gradients by NaN.

    with: version="0.16.4"
    bad: {"train_batch_size": 8, "gradient_clipping": 1.0, "zero_optimization": {"stage": 2}}
    good: {"train_batch_size": 8, "gradient_clipping": 0, "zero_optimization": {"stage": 2}}
    """
    if config.stage in (1, 2) and _clips(config):
        said = "clip with NaN once a norm is infinite at stages 1 and 2"
        yield FaultFinding(("gradient_clipping",), said)


@fault(
    "DSC841",
    "0.9.0 to 0.10.3",
    "deepspeedai/DeepSpeed#4321",
    'use DeepSpeed 0.11.0 or later, or "reduce_scatter": true',
    effect=Effect.NOTE,
)
def full_bucket_not_reduced(config: Context) -> Iterator[FaultFinding]:
    """Up to 0.10.3, stage 3 without reduce_scatter leaves out a tensor as large as the bucket.

    The Trainer's own size for the bucket, hidden_size squared, is that of many weights.

    with: version="0.10.0"
    bad: {"train_batch_size": 8, "zero_optimization": {"stage": 3, "reduce_scatter": false}}
    good: {"train_batch_size": 8, "zero_optimization": {"stage": 3, "reduce_scatter": true}}
    """
    contiguous = config.in_force(ZERO, "contiguous_gradients")
    if config.stage == 3 and contiguous and not config.in_force(ZERO, "reduce_scatter"):
        said = "do not reduce the gradient of a weight exactly as large as reduce_bucket_size"
        yield FaultFinding((*ZERO, "reduce_scatter"), said)


@fault(
    "DSC842",
    "0.8.0 to 0.19.3",
    "deepspeedai/DeepSpeed#8179",
    "use DeepSpeed 0.19.4 or later, or delete it",
    triggers="scheduler",
)
def stairs_without_effect(config: Context) -> Iterator[FaultFinding]:
    """Up to 0.19.3, OneCycle takes the counts of stairs and goes up a ramp all the same.

    with: version="0.19.3"
    bad: {"train_batch_size": 8, "scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": 0.1,
        "cycle_max_lr": 0.2, "cycle_first_stair_count": 10}}}
    good: {"train_batch_size": 8, "scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": 0.1,
        "cycle_max_lr": 0.2}}}
    """
    for name in ("cycle_first_stair_count", "cycle_second_stair_count"):
        path = ("scheduler", "params", name)
        if config.scheduler == "OneCycle" and (config.number(*path) or 0) > 0:
            yield FaultFinding(path, f"ignore {name}: the rate goes up a ramp")


@fault(
    "DSC843",
    "0.17.2 to 0.19.3",
    "deepspeedai/DeepSpeed#8171",
    'use DeepSpeed 0.19.4 or later, or write "warmup_max_lr" as a list, one rate for each group',
    effect=Effect.NOTE,
    triggers="scheduler",
)
def groups_warm_up_alike(config: Context) -> Iterator[FaultFinding]:
    """0.17.2 to 0.19.3 warm every parameter group up to the rate of the first.

    Without `warmup_max_lr` WarmupLR takes the optimizer's rate, and that of its first group only.

    with: version="0.18.9"
    bad: {"train_batch_size": 8, "scheduler": {"type": "WarmupLR", "params":
        {"warmup_num_steps": 10}}}
    good: {"train_batch_size": 8, "scheduler": {"type": "WarmupLR", "params":
        {"warmup_num_steps": 10, "warmup_max_lr": 0.001}}}
    """
    if (
        config.scheduler == "WarmupLR"
        and config.get("scheduler", "params", "warmup_max_lr") is None
    ):
        said = "take the rate of the first parameter group for all"
        yield FaultFinding(("scheduler", "params"), said)


@fault(
    "DSC844",
    "0.18.3 to 0.19.5",
    "deepspeedai/DeepSpeed#8224",
    "use DeepSpeed 0.19.6 or later, which have deepspeedai/DeepSpeed#8245, or stage 1 or 3",
    effect=Effect.NOTE,
)
def one_backward_loses_a_subgraph(config: Context) -> Iterator[FaultFinding]:
    """0.18.3 to 0.19.5 may miss part of a gradient at stage 2 in bf16.

    Where a module is used twice in a step (a shared encoder, a second loss), a parameter becomes
    ready twice in one backward, and the reduction leaves one of the parts out on several ranks.
    0.19.6 counts the backwards that a graph is part of.

    with: version="0.19.3"
    bad: {"train_batch_size": 8, "bf16": {"enabled": true}, "zero_optimization": {"stage": 2}}
    good: {"train_batch_size": 8, "bf16": {"enabled": true}, "zero_optimization": {"stage": 3}}
    """
    if config.stage == 2 and config.bf16 and not _offloads(config):
        said = "miss part of the gradient of a module that is used twice in a step"
        yield FaultFinding(STAGE, said)


@fault(
    "DSC845",
    "0.18.3 to 0.19.8",
    "deepspeedai/DeepSpeed#8393",
    "use stage 1, which is scaled, or bf16",
    effect=Effect.NOTE,
    triggers="fp16",
)
def fp16_unscaled_at_stage_0(config: Context) -> Iterator[FaultFinding]:
    """0.18.3 to 0.19.8 divide fp16 gradients of stage 0 by a loss scale that nobody applied.

    Only optimizers of ZeRO scale the loss since then. SGD stands still, clipping never acts, and
    Adam works with moments near its eps. Measured with 0.19.8: weights unchanged at a scale of
    2^20. A note, since Adam with a small eps hides it.

    with: version="0.19.8"
    bad: {"train_batch_size": 8, "fp16": {"enabled": true}}
    good: {"train_batch_size": 8, "fp16": {"enabled": true}, "zero_optimization": {"stage": 1}}
    """
    if config.is_unscaled:
        said = "divide gradients by the loss scale at stage 0 and never multiply the loss by it"
        yield FaultFinding(("fp16",), said)
