"""Rules for the fp16 loss scale."""

from collections.abc import Iterator

from dsconfig.checks.context import Context
from dsconfig.checks.registry import refusal, rule
from dsconfig.checks.rule import REJECTED, Finding
from dsconfig.report import Effect
from dsconfig.schema.paths import FP16

MAX_EXPONENT = 62
"""Largest power: 2^63 exceeds a signed 64-bit integer, and the first backward overflows."""
UNUSABLE_SCALE = 2.0**32
"""Scale at which every fp16 gradient overflows; the largest fp16 number is 65504."""
ADVICE = (
    "overflows lower the scale, and at its minimum DeepSpeed raises an error. Use bf16 if the GPU "
    "supports it, a lower learning rate or gradient clipping before changing the minimum"
)


def _is_dynamic(config: Context) -> bool:
    return config.in_force(FP16, "loss_scale") == 0


@refusal("DSC321", also=(Effect.ALTERED,), triggers="fp16", stops="ValidationError")
def loss_scale_limits(config: Context) -> Iterator[Finding]:
    """`loss_scale_window` or `min_loss_scale` is zero or negative

    DeepSpeed 0.19.3 and later reject the config. Earlier releases divide by zero at the first
    successful step if the window is 0, and let the scale drop to 0 if the minimum is 0.

    bad: {"train_batch_size": 8, "fp16": {"enabled": true, "loss_scale_window": 0}}
    good: {"train_batch_size": 8, "fp16": {"enabled": true, "loss_scale_window": 1000}}
    """
    if not config.fp16 or not _is_dynamic(config):
        return
    checked = config.since("0.19.3")
    consequence = REJECTED if checked else "DeepSpeed 0.19.3 and later reject it"
    helps = {
        "loss_scale_window": 'write "loss_scale_window": 1000',
        "min_loss_scale": 'write "min_loss_scale": 1, or delete it',
    }
    for name, help in helps.items():
        value = config.in_force(FP16, name)
        if value <= 0:
            yield Finding(
                path=FP16 / name,
                message=f"fp16.{name} is {value:g} with a dynamic loss scale: {consequence}",
                help=help,
                effect=None if checked else Effect.ALTERED,
            )


@rule("DSC322", Effect.NOTE, triggers="fp16")
def fractional_min_loss_scale(config: Context) -> Iterator[Finding]:
    """`min_loss_scale` below 1

    `1e-10` is widely recommended against "Current loss scale already at minimum". DeepSpeed 0.17.1
    and later reject a fraction here; dsengine accepts it. A scale below 1 makes small gradients
    even smaller: use bf16, a lower learning rate or gradient clipping instead.

    with: version="0.16.9"
    bad: {"train_batch_size": 8, "fp16": {"enabled": true, "min_loss_scale": 1e-10}}
    good: {"train_batch_size": 8, "fp16": {"enabled": true, "min_loss_scale": 1}}
    """
    value = config.number("fp16", "min_loss_scale")
    if value is not None and 0 < value < 1:
        verb = "rejects" if config.since("0.17.1") else "accepts"
        yield Finding(
            path=FP16 / "min_loss_scale",
            message=f"min_loss_scale {value:g} is below 1, which DeepSpeed {config.release} "
            f"{verb} (rejected since 0.17.1)",
            help=ADVICE,
        )


@rule("DSC323", Effect.NOTE, triggers="fp16")
def loss_scale_starts_below_minimum(config: Context) -> Iterator[Finding]:
    """Initial loss scale is at or below its minimum

    Overflows cannot lower it. With ZeRO, DeepSpeed raises it to the minimum at the first counted
    overflow (see `hysteresis`) and fails at the next with "Current loss scale already at minimum".
    Without ZeRO, it keeps skipping steps.

    bad: {"train_batch_size": 8, "fp16": {"enabled": true, "initial_scale_power": 4,
        "min_loss_scale": 1024}}
    good: {"train_batch_size": 8, "fp16": {"enabled": true, "initial_scale_power": 16,
        "min_loss_scale": 1}}
    """
    if not config.fp16 or not _is_dynamic(config):
        return
    power = config.in_force(FP16, "initial_scale_power")
    minimum = config.in_force(FP16, "min_loss_scale")
    if 0 <= power <= MAX_EXPONENT and minimum > 1 and 2**power <= minimum:
        yield Finding(
            path=FP16 / "min_loss_scale",
            message=f"the scale starts at {2**power} (2^{power}) but its minimum is {minimum}: "
            "overflows cannot lower it",
            help=ADVICE,
        )


@rule("DSC324", Effect.ALTERED, triggers="fp16")
def hysteresis_not_positive(config: Context) -> Iterator[Finding]:
    """`hysteresis` below 1

    It is the number of overflows before the scale is lowered.

    bad: {"train_batch_size": 8, "fp16": {"enabled": true, "hysteresis": -5}}
    good: {"train_batch_size": 8, "fp16": {"enabled": true, "hysteresis": 2}}
    """
    value = config.in_force(FP16, "hysteresis")
    if value < 1:
        yield Finding(
            path=FP16 / "hysteresis",
            message=f"fp16.hysteresis is {value}: DeepSpeed does not check it, and the scale "
            "drops at "
            "the first overflow or irregularly",
            help='write "hysteresis": 2',
        )


@rule("DSC325", Effect.REFUSED, also=(Effect.ALTERED,), triggers="fp16", stops="step OverflowError")
def scale_power_out_of_range(config: Context) -> Iterator[Finding]:
    """`initial_scale_power` out of range

    The scale starts at 2 to this power. Above 62, the first step with ZeRO raises an OverflowError;
    without ZeRO, every step is skipped until the scale has dropped. Below 0, the loss is divided
    instead of multiplied, and small gradients underflow. The latter two are `altered`.

    bad: {"train_batch_size": 8, "zero_optimization": {"stage": 2}, "fp16": {"enabled": true,
        "initial_scale_power": 200}}
    good: {"train_batch_size": 8, "fp16": {"enabled": true, "initial_scale_power": 16}}
    """
    power = config.in_force(FP16, "initial_scale_power")
    if 0 <= power <= MAX_EXPONENT or not _is_dynamic(config):
        return
    stops = power > MAX_EXPONENT and config.fp16 and config.stage > 0
    if stops:
        consequence = "the first step raises an OverflowError"
    elif power > 0:
        consequence = "steps are skipped until the scale has dropped"
    else:
        consequence = "the scale starts below 1, and small gradients underflow"
    yield Finding(
        path=FP16 / "initial_scale_power",
        message=f"fp16.initial_scale_power is {power}: {consequence}",
        help='write "initial_scale_power": 16',
        effect=None if stops else Effect.ALTERED,
    )


@rule("DSC326", Effect.ALTERED, triggers="fp16")
def loss_scale_too_large(config: Context) -> Iterator[Finding]:
    """Fixed loss scale too large

    Every step overflows and is skipped.

    bad: {"train_batch_size": 8, "fp16": {"enabled": true, "loss_scale": 1e30}}
    good: {"train_batch_size": 8, "fp16": {"enabled": true, "loss_scale": 0}}
    """
    scale = config.in_force(FP16, "loss_scale")
    if config.fp16 and scale >= UNUSABLE_SCALE:
        yield Finding(
            path=FP16 / "loss_scale",
            message=f"a fixed loss scale of {scale:g} overflows at every step: all steps are "
            "skipped",
            help='write "loss_scale": 0 for a dynamic scale',
        )


@rule("DSC327", Effect.NOTE, also=(Effect.INERT,), triggers="fp16")
def fixed_loss_scale(config: Context) -> Iterator[Finding]:
    """Fixed loss scale

    It does not adapt to overflows. The keys of the dynamic scale (`initial_scale_power`,
    `loss_scale_window`, `hysteresis`, `min_loss_scale`) have no effect (`inert`).

    bad: {"train_batch_size": 8, "fp16": {"enabled": true, "loss_scale": 8}}
    good: {"train_batch_size": 8, "fp16": {"enabled": true, "loss_scale": 0}}
    """
    scale = config.in_force(FP16, "loss_scale")
    if not config.fp16 or not 0 < scale < UNUSABLE_SCALE:
        return
    idle = ("initial_scale_power", "loss_scale_window", "hysteresis", "min_loss_scale")
    written = [name for name in idle if config.written(FP16, name)]
    if not written:
        written = ["loss_scale"]
    yield Finding(
        path=FP16 / written[0],
        message=f"the loss scale is fixed at {scale:g}: it does not adapt to overflows"
        + ("" if written == ["loss_scale"] else f", and {', '.join(written)} have no effect"),
        help='write "loss_scale": 0 for a dynamic scale',
        effect=None if written == ["loss_scale"] else Effect.INERT,
    )
