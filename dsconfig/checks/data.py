"""Rules for curriculum learning, dynamic batching and random layer token dropping."""

import math
from collections.abc import Iterator
from typing import Any

from dsconfig.checks.context import Context
from dsconfig.checks.registry import refusal, rule
from dsconfig.checks.rule import AT_INIT, REJECTED, Finding, reaches_deepspeed
from dsconfig.report import Effect
from dsconfig.schema.paths import ROOT, KeyPath
from dsconfig.schema.value_checks import AS_INTEGER
from dsconfig.source.pointer import is_block

SAMPLING = ROOT / "data_efficiency" / "data_sampling"
CURRICULUM = SAMPLING / "curriculum_learning"
BATCHING = SAMPLING / "dynamic_batching"
RANDOM_LTD = ROOT / "data_efficiency" / "data_routing" / "random_ltd"
NEEDED_BY_LTD = ("total_layer_num", "random_ltd_layer_num", "random_ltd_schedule")
NEEDED_BY_SCHEDULE = {
    "fixed_discrete": ("difficulty", "max_step"),
    "fixed_root": ("total_curriculum_step", "difficulty_step", "root_degree"),
    "fixed_linear": ("total_curriculum_step", "difficulty_step"),
    "custom": (),
}


@refusal("DSC911", triggers="data_efficiency", releases="0.8.0 to", stops="AssertionError")
def curriculum_without_metrics(config: Context) -> Iterator[Finding]:
    """Curriculum learning requires `curriculum_metrics`

    bad: {"train_batch_size": 8, "data_efficiency": {"data_sampling": {"curriculum_learning":
        {"enabled": true}}}}
    good: {"train_batch_size": 8, "data_efficiency": {"data_sampling": {"curriculum_learning":
        {"enabled": false}}}}
    """
    path = CURRICULUM / "curriculum_metrics"
    if config.get(*CURRICULUM, "enabled") and not config.has(*path):
        yield Finding(
            path=path,
            message=f"curriculum_learning is enabled without curriculum_metrics: {REJECTED}",
            help='add "curriculum_metrics": {...}',
        )


@rule("DSC912", Effect.INERT, triggers="data_efficiency", applies_to=reaches_deepspeed)
def enabled_in_disabled_block(config: Context) -> Iterator[Finding]:
    """Enabled feature inside a disabled block

    The outer `enabled` switches have no effect, and the feature runs.

    bad: {"train_batch_size": 8, "data_efficiency": {"enabled": false, "data_sampling": {"enabled":
        false, "curriculum_learning": {"enabled": true, "curriculum_metrics": {}}}}}
    good: {"train_batch_size": 8, "data_efficiency": {"enabled": true, "data_sampling": {"enabled":
        true, "curriculum_learning": {"enabled": true, "curriculum_metrics": {}}}}}
    """
    for feature in (CURRICULUM, BATCHING, RANDOM_LTD):
        if not config.switch(*feature, "enabled"):
            continue
        parents = (feature.parent, feature.parent.parent)
        off = [str(block) for block in parents if not config.switch(*block, "enabled")]
        if off:
            yield Finding(
                path=feature / "enabled",
                message=f"{feature[-1]} is enabled although {' and '.join(off)} "
                f"{'is' if len(off) == 1 else 'are'} not: the outer switch has no "
                f"effect, and {feature[-1]} runs",
                help=f"enable {' and '.join(off)} as well, or disable {feature[-1]}",
            )


@refusal("DSC913", triggers="data_efficiency", releases="0.16.5 to", stops="AssertionError")
def dynamic_batching_without_tokens(config: Context) -> Iterator[Finding]:
    """Dynamic batching requires a numeric `max_tokens`

    bad: {"train_batch_size": 8, "data_efficiency": {"data_sampling": {"dynamic_batching":
        {"enabled": true}}}}
    good: {"train_batch_size": 8, "data_efficiency": {"data_sampling": {"dynamic_batching":
        {"enabled": true, "max_tokens": 4096}}}}
    """
    path = BATCHING / "max_tokens"
    if config.get(*BATCHING, "enabled") and not AS_INTEGER.accepts(config.get(*path)):
        yield Finding(
            path=path,
            message=f"dynamic_batching requires a numeric max_tokens: {REJECTED}",
            help='add "max_tokens": <tokens per micro batch>',
        )


@refusal("DSC915", triggers="data_efficiency", stops="data KeyError")
def random_ltd_incomplete(config: Context) -> Iterator[Finding]:
    """`random_ltd` is incomplete

    Its scheduler requires more keys. `layer_token_lr_schedule.enabled` must be false, because
    DeepSpeed does not implement that schedule.

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
                path=RANDOM_LTD / name,
                message=f"random_ltd requires {name}: {AT_INIT}",
                help=f'add "{name}"',
            )
    if config.switch(*RANDOM_LTD, "layer_token_lr_schedule", "enabled"):
        yield Finding(
            path=RANDOM_LTD / "layer_token_lr_schedule" / "enabled",
            message=f"layer_token_lr_schedule is not implemented: {AT_INIT}",
            help='write "enabled": false',
        )


@refusal(
    "DSC916",
    triggers="data_efficiency",
    stops="data AssertionError",
    from_source="fails when deepspeed creates the data loader",
)
def curriculum_metric_incomplete(config: Context) -> Iterator[Finding]:
    """Curriculum metric is incomplete

    Without its difficulties, its schedule or the keys that the schedule requires, creating the data
    loader fails.

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
            yield from _metric(CURRICULUM / "curriculum_metrics" / name, metric)


def _length(value: Any) -> int:
    return len(value) if isinstance(value, list) else 0  # pyright: ignore[reportUnknownArgumentType]


def _metric(path: KeyPath, metric: dict[str, Any]) -> Iterator[Finding]:
    consequence = "creating the data loader fails"
    for name in ("min_difficulty", "max_difficulty", "schedule_type"):
        if name not in metric:
            yield Finding(
                path=path / name,
                message=f"the curriculum metric {path[-1]} requires {name}: {consequence}",
                help=f'add "{name}"',
            )
    schedule = metric.get("schedule_type")
    details = metric.get("schedule_config")
    if not isinstance(schedule, str) or schedule not in NEEDED_BY_SCHEDULE:
        return
    config = details if is_block(details) else {}
    for name in NEEDED_BY_SCHEDULE[schedule]:
        if name not in config:
            yield Finding(
                path=path / "schedule_config" / name,
                message=f"the schedule {schedule} requires schedule_config.{name}: {consequence}",
                help=f'add "{name}" to schedule_config',
            )
    levels, ends = _length(config.get("difficulty")), _length(config.get("max_step"))
    if schedule == "fixed_discrete" and levels and ends and levels != ends + 1:
        yield Finding(
            path=path / "schedule_config" / "max_step",
            message=f"max_step must have one entry fewer than difficulty: {consequence}",
            help="delete the last entry of max_step; the last difficulty has no end",
        )


@rule("DSC917", Effect.COSTLY, triggers="vocabulary_size", applies_to=reaches_deepspeed)
def vocabulary_not_aligned(config: Context) -> Iterator[Finding]:
    """`vocabulary_size` is not a multiple of 8

    Tensor cores require multiples of 8. DeepSpeed logs a warning; nothing else reads the key.

    bad: {"train_batch_size": 8, "vocabulary_size": 50257}
    good: {"train_batch_size": 8, "vocabulary_size": 50264}
    """
    value = config.number("vocabulary_size")
    if value and math.isfinite(value) and value % 8:
        yield Finding(
            path=ROOT / "vocabulary_size",
            message=f"vocabulary_size {value:g} is not a multiple of 8: matrix products of the "
            "output layer cannot use tensor cores efficiently",
            help=f"pad the vocabulary to {int(value) // 8 * 8 + 8}, or delete the key",
        )
