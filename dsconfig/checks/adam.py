"""Rules for Adam, AdamW, Lamb and Muon."""

from collections.abc import Iterator

from dsconfig.checks.context import Context
from dsconfig.checks.optimizer import built_optimizer
from dsconfig.checks.registry import refusal, rule
from dsconfig.checks.rule import AT_INIT, Finding, Phase
from dsconfig.report import Effect
from dsconfig.runtimes.base import AUTO
from dsconfig.schema.paths import FP16, OPTIMIZER_PARAMS, OPTIMIZER_TYPE, ZERO


@rule("DSC608", Effect.INERT, triggers="optimizer")
def adam_is_adamw(config: Context) -> Iterator[Finding]:
    """Optimizer type `Adam` behaves as `AdamW`

    Unless `adam_w_mode` is false, DeepSpeed's `Adam` applies decoupled weight decay. What has no
    effect (`inert`) is the name: `Adam` instead of `AdamW`. The weight decay is applied.

    bad: {"train_batch_size": 8, "optimizer": {"type": "Adam", "params": {"lr": 0.001,
        "weight_decay": 0.1}}}
    good: {"train_batch_size": 8, "optimizer": {"type": "AdamW", "params": {"lr": 0.001,
        "weight_decay": 0.1}}}
    """
    decay = config.number(*OPTIMIZER_PARAMS, "weight_decay")
    if config.is_optimizer("Adam") and decay and not config.has(*OPTIMIZER_PARAMS, "adam_w_mode"):
        yield Finding(
            path=OPTIMIZER_TYPE,
            message=f'"Adam" instead of "AdamW" has no effect: weight_decay {decay:g} is applied, '
            "decoupled from the gradient",
            help='write "type": "AdamW", or set "adam_w_mode": false for Adam with L2 '
            "regularization",
        )


@rule("DSC609", Effect.INERT, triggers="optimizer")
def adam_w_mode_ignored(config: Context) -> Iterator[Finding]:
    """`adam_w_mode: false` has no effect on optimizer type `AdamW`

    Only type `Adam` reads it.

    bad: {"train_batch_size": 8, "optimizer": {"type": "AdamW", "params": {"lr": 0.001,
        "adam_w_mode": false}}}
    good: {"train_batch_size": 8, "optimizer": {"type": "Adam", "params": {"lr": 0.001,
        "adam_w_mode": false}}}
    """
    if config.is_optimizer("AdamW") and config.get(*OPTIMIZER_PARAMS, "adam_w_mode") is False:
        yield Finding(
            path=OPTIMIZER_PARAMS / "adam_w_mode",
            message="adam_w_mode false has no effect on optimizer type AdamW",
            help='write "type": "Adam"',
        )


@refusal("DSC610", triggers="optimizer", stops="optimizer RuntimeError")
def amsgrad_not_supported(config: Context) -> Iterator[Finding]:
    """`amsgrad` is not supported by DeepSpeed's Adam and Lamb kernels

    torch's Adam, selected by `torch_adam`, supports it.

    bad: {"train_batch_size": 8, "optimizer": {"type": "AdamW", "params": {"lr": 0.001, "amsgrad":
        true}}}
    good: {"train_batch_size": 8, "optimizer": {"type": "AdamW", "params": {"lr": 0.001, "amsgrad":
        true, "torch_adam": true}}}
    """
    target = built_optimizer(config)
    if target is None or target.kind.name not in ("FusedAdam", "DeepSpeedCPUAdam", "FusedLamb"):
        return
    if config.switch(*OPTIMIZER_PARAMS, "amsgrad"):
        yield Finding(
            path=OPTIMIZER_PARAMS / "amsgrad",
            message=f"{target.kind.name} does not support amsgrad: {AT_INIT}",
            help='delete it, or add "torch_adam": true',
        )


@refusal("DSC611", triggers="optimizer", stops="engine AssertionError")
def lamb_with_fixed_scale(config: Context) -> Iterator[Finding]:
    """Lamb requires dynamic loss scaling

    bad: {"train_batch_size": 8, "optimizer": {"type": "Lamb", "params": {"lr": 0.001}}, "fp16":
        {"enabled": true, "loss_scale": 128}}
    good: {"train_batch_size": 8, "optimizer": {"type": "Lamb", "params": {"lr": 0.001}}, "fp16":
        {"enabled": true, "loss_scale": 0}}
    """
    if config.is_optimizer("Lamb") and (scale := config.in_force(FP16, "loss_scale")) != 0:
        yield Finding(
            path=FP16 / "loss_scale",
            message=f"Lamb requires dynamic loss scaling, but loss_scale is {scale:g}: {AT_INIT}",
            help='write "loss_scale": 0',
        )


LIMITS = {
    "lr": (0.0, None),
    "eps": (0.0, None),
    "weight_decay": (0.0, None),
    "momentum": (0.0, None),
    "betas": (0.0, 1.0),
}
"""Inclusive minimum and exclusive maximum."""


@rule("DSC614", Effect.ALTERED, also=(Effect.REFUSED,), triggers="optimizer")
def optimizer_argument_range(config: Context) -> Iterator[Finding]:
    """Optimizer argument out of range

    torch's optimizers raise an error; DeepSpeed's kernels do not check the value and use it.

    bad: {"train_batch_size": 8, "optimizer": {"type": "AdamW", "params": {"lr": -0.001}}}
    good: {"train_batch_size": 8, "optimizer": {"type": "AdamW", "params": {"lr": 0.001}}}
    """
    target = built_optimizer(config)
    stops = target is not None and target.kind.is_torch
    for name, (least, below) in LIMITS.items():
        several = config.items(*OPTIMIZER_PARAMS, name)
        for index, value in enumerate(several or [config.get(*OPTIMIZER_PARAMS, name)]):
            if not isinstance(value, (int, float)) or isinstance(value, bool):
                continue
            if value >= least and (below is None or value < below):
                continue
            limit = "0 or more" if below is None else f"at least {least:g} and below {below:g}"
            yield Finding(
                path=OPTIMIZER_PARAMS / name / str(index) if several else OPTIMIZER_PARAMS / name,
                message=f"{name} is {value:g}, but must be {limit}: "
                + (AT_INIT if stops else "DeepSpeed does not check it and uses it"),
                help=f"set it to {limit}" if below is None else f"set it to a value {limit}",
                effect=Effect.REFUSED if stops else None,
                phase=Phase.OPTIMIZER,
                exception="ValueError",
            )


@refusal("DSC621", triggers="optimizer", stops="zero ValueError")
def muon_with_reduce_scatter(config: Context) -> Iterator[Finding]:
    """Muon requires unsharded gradients

    At stage 3, `reduce_scatter`, enabled by default, and quantized gradients must be disabled;
    DeepSpeed before 0.18.9 rejects Muon at stage 3. 0.19.3 to 0.19.7 also reject `reduce_scatter`
    at stages 1 and 2 if the optimizer is offloaded.

    bad: {"train_batch_size": 8, "zero_optimization": {"stage": 3}, "optimizer": {"type": "Muon",
        "params": {"lr": 0.02}}}
    good: {"train_batch_size": 8, "zero_optimization": {"stage": 3, "reduce_scatter": false},
        "optimizer": {"type": "Muon", "params": {"lr": 0.02}}}
    """
    if not config.is_optimizer("Muon") or config.stage == 0 or not config.since("0.17.6"):
        return  # DSC601 reports releases without Muon
    path, help = ZERO / "reduce_scatter", 'add "reduce_scatter": false to zero_optimization'
    if config.stage == 3 and not config.since("0.18.9"):
        yield Finding(
            path=OPTIMIZER_TYPE,
            message=f"Muon does not support ZeRO stage 3 before DeepSpeed 0.18.9: {AT_INIT}",
            help="use stage 2, or DeepSpeed 0.18.9 or later",
            phase=Phase.OPTIMIZER,
            exception="AssertionError",
        )
        return
    scatters = config.in_force(ZERO, "reduce_scatter")
    if config.stage != 3:
        refuses = config.since("0.19.3") and not config.since("0.19.8")
        if scatters and refuses and config.offload("offload_optimizer") != "none":
            yield Finding(
                path=path if config.has(*path) else OPTIMIZER_TYPE,
                message="Muon with optimizer offload does not support reduce_scatter, enabled by "
                f"default: {AT_INIT}",
                help="use DeepSpeed 0.19.8 or later, or train without optimizer offload",
            )
        return
    quantized = config.in_force(ZERO, "zero_quantized_gradients")
    if scatters or quantized:
        yield Finding(
            path=path if config.has(*path) else OPTIMIZER_TYPE,
            message="Muon at ZeRO stage 3 does not support "
            + ("reduce_scatter, enabled by default" if scatters else "quantized gradients")
            + f": {AT_INIT}",
            help=help,
        )


@rule("DSC622", Effect.REFUSED, triggers="optimizer", stops="optimizer AssertionError")
def muon_method(config: Context) -> Iterator[Finding]:
    """Muon's `ns_method` must be `gram` or `standard`

    bad: {"train_batch_size": 8, "optimizer": {"type": "Muon", "params": {"lr": 0.02, "ns_method":
        "fast"}}}
    good: {"train_batch_size": 8, "optimizer": {"type": "Muon", "params": {"lr": 0.02, "ns_method":
        "gram"}}}
    """
    path = OPTIMIZER_PARAMS / "ns_method"
    if not config.is_optimizer("Muon") or not config.has(*path):
        return
    value, known = config.get(*path), config.key_at(path)
    if known and value not in (*known.choices, AUTO):
        yield Finding(
            path=path,
            message=f"ns_method must be gram or standard, not {value!r}: {AT_INIT}",
            help='write "gram" or "standard"',
        )
