"""Data efficiency: curriculum learning, dynamic batching, random layer token dropping."""

import math
from collections.abc import Iterator
from typing import Any

from dsconfig.checks.context import Context
from dsconfig.checks.registry import refusal, rule
from dsconfig.checks.rule import AT_INIT, Finding, Path, reaches_deepspeed
from dsconfig.report import Effect
from dsconfig.runtimes.conditions import BATCHING, CURRICULUM
from dsconfig.source.pointer import is_block

SAMPLING: Path = ("data_efficiency", "data_sampling")
RANDOM_LTD: Path = ("data_efficiency", "data_routing", "random_ltd")
NEEDED_BY_LTD = ("total_layer_num", "random_ltd_layer_num", "random_ltd_schedule")
NEEDED_BY_SCHEDULE = {
    "fixed_discrete": ("difficulty", "max_step"),
    "fixed_root": ("total_curriculum_step", "difficulty_step", "root_degree"),
    "fixed_linear": ("total_curriculum_step", "difficulty_step"),
    "custom": (),
}


@refusal("DSC911", triggers="data_efficiency")
def curriculum_without_metrics(config: Context) -> Iterator[Finding]:
    """Curriculum learning is enabled and curriculum_metrics is missing; DeepSpeed stops.

    bad: {"train_batch_size": 8, "data_efficiency": {"data_sampling": {"curriculum_learning":
        {"enabled": true}}}}
    good: {"train_batch_size": 8, "data_efficiency": {"data_sampling": {"curriculum_learning":
        {"enabled": false}}}}
    """
    yield from config.violation_findings(
        "curriculum-without-metrics",
        "DeepSpeed stops while it reads the file",
        'add "curriculum_metrics": {...}',
    )


@rule("DSC912", Effect.INERT, triggers="data_efficiency", applies_to=reaches_deepspeed)
def switched_off_above(config: Context) -> Iterator[Finding]:
    """A part is enabled inside a block that is not: the outer switches have no effect, and the
    part runs.

    bad: {"train_batch_size": 8, "data_efficiency": {"enabled": false, "data_sampling": {"enabled":
        false, "curriculum_learning": {"enabled": true, "curriculum_metrics": {}}}}}
    good: {"train_batch_size": 8, "data_efficiency": {"enabled": true, "data_sampling": {"enabled":
        true, "curriculum_learning": {"enabled": true, "curriculum_metrics": {}}}}}
    """
    for part, parents in (
        (CURRICULUM, (SAMPLING, SAMPLING[:1])),
        (BATCHING, (SAMPLING, SAMPLING[:1])),
        (RANDOM_LTD, (RANDOM_LTD[:2], RANDOM_LTD[:1])),
    ):
        if not config.switch(*part, "enabled"):
            continue
        off = [".".join(each) for each in parents if not config.switch(*each, "enabled")]
        if off:
            yield Finding(
                path=(*part, "enabled"),
                message=f"{part[-1]} is enabled although {' and '.join(off)} "
                f"{'is' if len(off) == 1 else 'are'} not: the outer switch has no "
                "effect, and it runs",
                help=f"enable {' and '.join(off)} as well, or switch {part[-1]} off",
            )


@refusal("DSC913", triggers="data_efficiency")
def dynamic_batching_without_tokens(config: Context) -> Iterator[Finding]:
    """dynamic_batching is enabled without max_tokens, or with one that is no number.

    bad: {"train_batch_size": 8, "data_efficiency": {"data_sampling": {"dynamic_batching":
        {"enabled": true}}}}
    good: {"train_batch_size": 8, "data_efficiency": {"data_sampling": {"dynamic_batching":
        {"enabled": true, "max_tokens": 4096}}}}
    """
    yield from config.violation_findings(
        "dynamic-batching-without-tokens",
        "DeepSpeed stops while it reads the file",
        'add "max_tokens": the tokens of one micro batch',
    )


@refusal("DSC915", triggers="data_efficiency", late=True)
def random_ltd_incomplete(config: Context) -> Iterator[Finding]:
    """random_ltd is enabled and lacks what its scheduler reads; the engine is not built.

    `layer_token_lr_schedule` must be there, with enabled false: the feature was never finished.

    bad: {"train_batch_size": 8, "data_efficiency": {"enabled": true, "data_routing": {"enabled":
        true, "random_ltd": {"enabled": true}}}}
    good: {"train_batch_size": 8, "data_efficiency": {"enabled": true, "data_routing": {"enabled":
        true, "random_ltd": {"enabled": false}}}}
    """
    if not config.switch(*RANDOM_LTD, "enabled"):
        return
    for name in NEEDED_BY_LTD:
        if not config.has(*RANDOM_LTD, name):
            yield Finding(
                path=(*RANDOM_LTD, name),
                message=f"random_ltd needs {name}: {AT_INIT}",
                help=f'add "{name}"',
            )
    if config.switch(*RANDOM_LTD, "layer_token_lr_schedule", "enabled"):
        yield Finding(
            path=(*RANDOM_LTD, "layer_token_lr_schedule", "enabled"),
            message=f"layer_token_lr_schedule was never finished: {AT_INIT}",
            help='write "enabled": false',
        )


@refusal("DSC916", triggers="data_efficiency", late=True)
def curriculum_metric_incomplete(config: Context) -> Iterator[Finding]:
    """A curriculum metric lacks its difficulties, its schedule, or what the schedule needs; the
    data loader stops when it is built.

    bad: {"train_batch_size": 8, "data_efficiency": {"enabled": true, "data_sampling": {"enabled":
        true, "curriculum_learning": {"enabled": true, "curriculum_metrics": {"seqlen":
        {"schedule_type": "fixed_linear"}}}}}}
    good: {"train_batch_size": 8, "data_efficiency": {"enabled": true, "data_sampling": {"enabled":
        true, "curriculum_learning": {"enabled": true, "curriculum_metrics": {"seqlen":
        {"schedule_type": "fixed_linear", "min_difficulty": 8, "max_difficulty": 1024,
        "schedule_config": {"total_curriculum_step": 100, "difficulty_step": 8}}}}}}}
    """
    if not config.switch(*CURRICULUM, "enabled"):
        return
    for name, metric in config.block(*CURRICULUM, "curriculum_metrics").items():
        if is_block(metric):
            yield from _metric((*CURRICULUM, "curriculum_metrics", name), metric)


def _length(value: Any) -> int:
    return len(value) if isinstance(value, list) else 0  # pyright: ignore[reportUnknownArgumentType]


def _metric(path: Path, metric: dict[str, Any]) -> Iterator[Finding]:
    stop = "the data loader stops when it is built"
    for name in ("min_difficulty", "max_difficulty", "schedule_type"):
        if name not in metric:
            yield Finding(
                path=(*path, name),
                message=f"the curriculum metric {path[-1]} needs {name}: {stop}",
                help=f'add "{name}"',
            )
    schedule = metric.get("schedule_type")
    details = metric.get("schedule_config")
    if not isinstance(schedule, str) or schedule not in NEEDED_BY_SCHEDULE:
        return
    there = details if is_block(details) else {}
    for name in NEEDED_BY_SCHEDULE[schedule]:
        if name not in there:
            yield Finding(
                path=(*path, "schedule_config", name),
                message=f"the schedule {schedule} needs schedule_config.{name}: {stop}",
                help=f'add "{name}" to schedule_config',
            )
    levels, ends = _length(there.get("difficulty")), _length(there.get("max_step"))
    if schedule == "fixed_discrete" and levels and ends and levels != ends + 1:
        yield Finding(
            path=(*path, "schedule_config", "max_step"),
            message=f"max_step must be one shorter than difficulty: {stop}",
            help="leave out the end of the last difficulty; it lasts for ever",
        )


@rule("DSC917", Effect.COSTLY, triggers="vocabulary_size", applies_to=reaches_deepspeed)
def vocabulary_not_aligned(config: Context) -> Iterator[Finding]:
    """vocabulary_size is no multiple of 8, which tensor cores want; DeepSpeed warns and goes on.

    Nothing else reads the key.

    bad: {"train_batch_size": 8, "vocabulary_size": 50257}
    good: {"train_batch_size": 8, "vocabulary_size": 50264}
    """
    value = config.number("vocabulary_size")
    if value and math.isfinite(value) and value % 8:
        yield Finding(
            path=("vocabulary_size",),
            message=f"vocabulary_size {value:g} is no multiple of 8: matrix products of the "
            "output layer miss the tensor cores",
            help=f"pad the vocabulary to {int(value) // 8 * 8 + 8}, or delete the key",
        )
