"""The loss scale of fp16: where it starts, how it moves, where it must stop."""

from collections.abc import Iterator

from dsconfig.checks.context import Context
from dsconfig.checks.registry import refusal, rule
from dsconfig.checks.rule import Finding
from dsconfig.report import Effect
from dsconfig.runtimes import conditions

FP16 = ("fp16",)
MAX_EXPONENT = 62
"""2^63 is no signed 64-bit integer any more, and the first backward overflows."""
UNUSABLE_SCALE = 2.0**32
"""No gradient survives a scale so large in fp16, whose largest number is 65504."""
ADVICE = (
    "the scale falls while gradients overflow; at its minimum DeepSpeed stops. Use bf16 where "
    "the card has it, lower the learning rate, or clip gradients, before moving the minimum"
)


def _is_dynamic(config: Context) -> bool:
    return config.in_force(FP16, "loss_scale") == 0


@refusal("DSC321", also=(Effect.ALTERED,), triggers="fp16")
def loss_scale_limits(config: Context) -> Iterator[Finding]:
    """Window or minimum of the dynamic loss scale is zero or negative.

    DeepSpeed 0.19.3 and later stop. Before, a window of 0 divided by zero at the first good
    step and a minimum of 0 let the scale fall to nothing.

    bad: {"train_batch_size": 8, "fp16": {"enabled": true, "loss_scale_window": 0}}
    good: {"train_batch_size": 8, "fp16": {"enabled": true, "loss_scale_window": 1000}}
    """
    checked = config.since("0.19.3")
    for violation in conditions.unusable_scale_limits(config):
        yield Finding(
            path=violation.path,
            message=f"{violation.said}: "
            + ("DeepSpeed stops" if checked else "DeepSpeed 0.19.3 and later stop"),
            help='write "loss_scale_window": 1000'
            if violation.path[-1] != "min_loss_scale"
            else 'write "min_loss_scale": 1 or leave it out',
            effect=None if checked else Effect.ALTERED,
        )


@rule("DSC322", Effect.NOTE, triggers="fp16")
def fractional_min_loss_scale(config: Context) -> Iterator[Finding]:
    """The well-known `min_loss_scale: 1e-10`.

    It was handed around as a cure for "Current loss scale already at minimum". DeepSpeed
    0.17.1 and later refuse a fraction here; dsengine takes it. A scale below 1 makes small
    gradients smaller still: what helps is bf16, a lower learning rate or clipping.

    bad: {"train_batch_size": 8, "fp16": {"enabled": true, "min_loss_scale": 1e-10}}
    good: {"train_batch_size": 8, "fp16": {"enabled": true, "min_loss_scale": 1}}
    """
    value = config.number("fp16", "min_loss_scale")
    if value is not None and 0 < value < 1:
        refused = "refuses" if config.since("0.17.1") else "takes"
        yield Finding(
            path=(*FP16, "min_loss_scale"),
            message=f"min_loss_scale {value:g} is below 1, which DeepSpeed {config.release} "
            f"{refused} (refused from 0.17.1 on)",
            help=ADVICE,
        )


@rule("DSC323", Effect.NOTE, triggers="fp16")
def loss_scale_starts_below_minimum(config: Context) -> Iterator[Finding]:
    """The scale starts at or below its minimum, so overflows cannot lower it.

    Under ZeRO DeepSpeed raises it to the minimum at the first overflow that counts (see
    `hysteresis`) and stops at the next with "Current loss scale already at minimum"; without ZeRO
    it goes on skipping steps.

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
            path=(*FP16, "min_loss_scale"),
            message=f"the scale starts at {2**power} (2^{power}) and its minimum is {minimum}: "
            "it cannot fall when gradients overflow",
            help=ADVICE,
        )


@rule("DSC324", Effect.ALTERED, triggers="fp16")
def hysteresis_not_positive(config: Context) -> Iterator[Finding]:
    """hysteresis counts the overflows before the scale falls; below 1 it counts nothing.

    bad: {"train_batch_size": 8, "fp16": {"enabled": true, "hysteresis": -5}}
    good: {"train_batch_size": 8, "fp16": {"enabled": true, "hysteresis": 2}}
    """
    value = config.in_force(FP16, "hysteresis")
    if value < 1:
        yield Finding(
            path=(*FP16, "hysteresis"),
            message=f"fp16.hysteresis is {value}: it is not checked, and the scale falls at the "
            "first overflow or in odd rhythm",
            help='write "hysteresis": 2',
        )


@rule("DSC325", Effect.REFUSED, also=(Effect.ALTERED,), triggers="fp16", late=True)
def scale_power_out_of_range(config: Context) -> Iterator[Finding]:
    """The scale starts at 2 to this power.

    Above 62 the first step under ZeRO stops with an OverflowError. Without ZeRO every step is
    skipped until the scale has come down, and below 0 the loss is divided instead of multiplied,
    so that small gradients are lost: both are `altered`.

    bad: {"train_batch_size": 8, "zero_optimization": {"stage": 2}, "fp16": {"enabled": true,
        "initial_scale_power": 200}}
    good: {"train_batch_size": 8, "fp16": {"enabled": true, "initial_scale_power": 16}}
    """
    power = config.in_force(FP16, "initial_scale_power")
    if 0 <= power <= MAX_EXPONENT or not _is_dynamic(config):
        return
    stops = power > MAX_EXPONENT and config.fp16 and config.stage > 0
    if stops:
        consequence = "the first step stops with an overflow"
    elif power > 0:
        consequence = "steps are skipped until the scale has come down"
    else:
        consequence = "the scale starts below 1, and small gradients are lost"
    yield Finding(
        path=(*FP16, "initial_scale_power"),
        message=f"fp16.initial_scale_power is {power}: {consequence}",
        help='write "initial_scale_power": 16',
        effect=None if stops else Effect.ALTERED,
        late=stops,
    )


@rule("DSC326", Effect.ALTERED, triggers="fp16")
def loss_scale_too_large(config: Context) -> Iterator[Finding]:
    """A fixed loss scale so large that every step overflows and is skipped.

    bad: {"train_batch_size": 8, "fp16": {"enabled": true, "loss_scale": 1e30}}
    good: {"train_batch_size": 8, "fp16": {"enabled": true, "loss_scale": 0}}
    """
    scale = config.in_force(FP16, "loss_scale")
    if config.fp16 and scale >= UNUSABLE_SCALE:
        yield Finding(
            path=(*FP16, "loss_scale"),
            message=f"a fixed loss scale of {scale:g} overflows at every step: all are skipped, "
            "and nothing is trained",
            help='write "loss_scale": 0 for a dynamic scale',
        )


@rule("DSC327", Effect.NOTE, also=(Effect.INERT,), triggers="fp16")
def fixed_loss_scale(config: Context) -> Iterator[Finding]:
    """A fixed loss scale does not adapt to overflows.

    The keys of the dynamic one (`initial_scale_power`, `loss_scale_window`, `hysteresis`,
    `min_loss_scale`) are `inert` beside it.

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
        path=(*FP16, written[0]),
        message=f"the loss scale is fixed at {scale:g}: it does not adapt to overflows"
        + ("" if written == ["loss_scale"] else f", and {', '.join(written)} do nothing"),
        help='"loss_scale": 0 makes it dynamic',
        effect=None if written == ["loss_scale"] else Effect.INERT,
    )
