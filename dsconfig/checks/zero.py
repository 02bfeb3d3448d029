"""Rules for combinations that the ZeRO optimizers reject or ignore."""

from collections.abc import Iterator

from dsconfig.checks.context import Context
from dsconfig.checks.dtypes import model_dtype, named_dtype
from dsconfig.checks.registry import refusal, rule
from dsconfig.checks.rule import AT_INIT, REJECTED, Finding
from dsconfig.report import Effect
from dsconfig.runtimes.base import AUTO
from dsconfig.schema.paths import GATHER_BUCKET, GRADIENT_CLIPPING, ROOT, ZERO
from dsconfig.source.edit import as_fix, replace_value


def sums(config: Context) -> bool:
    """Return whether gradients are summed rather than averaged."""
    value = config.get("gradient_allreduce_op")
    return isinstance(value, str) and value.lower() == "sum"


@refusal("DSC411", triggers="zero_optimization", stops="ValidationError")
def grad_norm_needs_stage(config: Context) -> Iterator[Finding]:
    """`compute_grad_norm: false` requires ZeRO stage 1 or 2

    bad: {"train_batch_size": 8, "gradient_clipping": 0, "zero_optimization": {"stage": 3,
        "compute_grad_norm": false}}
    good: {"train_batch_size": 8, "gradient_clipping": 0, "zero_optimization": {"stage": 2,
        "compute_grad_norm": false}}
    """
    if not config.in_force(ZERO, "compute_grad_norm") and config.stage in (0, 3):
        yield Finding(
            path=ZERO / "compute_grad_norm",
            message="compute_grad_norm false requires ZeRO stage 1 or 2, not "
            f"{config.stage}: {REJECTED}",
            help="delete it",
        )


@rule("DSC412", Effect.REFUSED, triggers="zero_optimization", stops="zero ValueError")
def grad_norm_needed(config: Context) -> Iterator[Finding]:
    """`compute_grad_norm: false` although the norm is required

    Gradient clipping, enabled by default (1.0), requires the norm. So do ZenFlow, optimizer
    offload, and stage 1 with bf16 weights and fp32 gradients.

    bad: {"train_batch_size": 8, "zero_optimization": {"stage": 2, "compute_grad_norm": false}}
    good: {"train_batch_size": 8, "gradient_clipping": 0, "zero_optimization": {"stage": 2,
        "compute_grad_norm": false}}
    """
    if config.in_force(ZERO, "compute_grad_norm") or config.stage not in (1, 2):
        return
    clipping = config.number("gradient_clipping") if config.has("gradient_clipping") else 1.0
    offloaded = config.offload("offload_optimizer") != "none"
    accumulates = named_dtype(config, "grad_accum_dtype") == "fp32"
    reasons = (
        (
            clipping is not None and clipping > 0,
            "gradient_clipping is enabled",
            '"gradient_clipping": 0',
        ),
        (bool(config.block(*ZERO, "zenflow")), "ZenFlow is enabled", "no zenflow"),
        (offloaded, "the optimizer is offloaded", 'no "offload_optimizer"'),
        (
            config.stage == 1 and not offloaded and accumulates and model_dtype(config) == "bf16",
            "stage 1 accumulates bf16 gradients in fp32",
            '"stage": 2',
        ),
    )
    for applies, reason, remedy in reasons:
        if applies:
            yield Finding(
                path=ZERO / "compute_grad_norm",
                message=f"compute_grad_norm is false although {reason}: {AT_INIT}",
                help=f"delete it, or write {remedy}",
            )


@refusal("DSC413", triggers="zero_optimization", stops="zero Exception")
def legacy_stage1(config: Context) -> Iterator[Finding]:
    """`legacy_stage1` was removed in DeepSpeed 0.5.9

    bad: {"train_batch_size": 8, "zero_optimization": {"stage": 1, "legacy_stage1": true}}
    good: {"train_batch_size": 8, "zero_optimization": {"stage": 1}}
    """
    if config.in_force(ZERO, "legacy_stage1") and config.stage and config.since("0.5.9"):
        yield Finding(
            path=ZERO / "legacy_stage1",
            message=f"legacy_stage1 was removed in 0.5.9: {AT_INIT}",
            help="delete it",
            fix=as_fix(replace_value(config.document, "/zero_optimization/legacy_stage1", False)),
        )


@refusal(
    "DSC414", triggers="prescale_gradients gradient_predivide_factor", stops="zero AssertionError"
)
def prescale_with_reduce_scatter(config: Context) -> Iterator[Finding]:
    """Gradient prescaling does not support `reduce_scatter`

    With `reduce_scatter`, stages 2 and 3 divide gradients after the reduction. `prescale_gradients`
    and a `gradient_predivide_factor` other than 1 require all-reduce.

    bad: {"train_batch_size": 8, "zero_optimization": {"stage": 2}, "prescale_gradients": true}
    good: {"train_batch_size": 8, "zero_optimization": {"stage": 1}, "prescale_gradients": true}
    """
    if config.stage < 2 or not config.in_force(ZERO, "reduce_scatter"):
        return
    if config.stage == 2 and sums(config):
        return
    factor = config.number("gradient_predivide_factor")
    wrong = {
        "prescale_gradients": config.switch("prescale_gradients"),
        "gradient_predivide_factor": factor is not None and factor != 1,
    }
    for key, is_wrong in wrong.items():
        if is_wrong:
            yield Finding(
                path=ROOT / key,
                message=f"{key} does not support reduce_scatter at ZeRO stage {config.stage}: "
                + AT_INIT,
                help=f'delete {key}, or set "reduce_scatter": false',
            )


@refusal("DSC415", triggers="zero_optimization", stops="zero AssertionError")
def odd_allgather_bucket(config: Context) -> Iterator[Finding]:
    """`allgather_bucket_size` must be even

    Stages 1 and 2 align the all-gather to 4 bytes.

    bad: {"train_batch_size": 8, "zero_optimization": {"stage": 2, "allgather_bucket_size":
        200000001}}
    good: {"train_batch_size": 8, "zero_optimization": {"stage": 2, "allgather_bucket_size":
        200000000}}
    """
    size = config.in_force(ZERO, "allgather_bucket_size")
    if config.stage in (1, 2) and size % 2:
        edits = replace_value(config.document, "/zero_optimization/allgather_bucket_size", size - 1)
        yield Finding(
            path=GATHER_BUCKET,
            message=f"allgather_bucket_size {size} is odd: {AT_INIT}",
            help=f"write {size - 1}",
            fix=as_fix(edits),
        )


@refusal("DSC416", triggers="gradient_allreduce_op", releases="0.19.6 to", stops="end ValueError")
def sum_not_supported(config: Context) -> Iterator[Finding]:
    """`gradient_allreduce_op: "sum"` is not supported with this feature

    It does not support ZeRO stage 3, ZenFlow or DeepCompile.

    bad: {"train_batch_size": 8, "zero_optimization": {"stage": 3}, "gradient_allreduce_op": "sum"}
    good: {"train_batch_size": 8, "zero_optimization": {"stage": 2}, "gradient_allreduce_op": "sum"}
    """
    if not sums(config):
        return
    reasons = {
        "ZeRO stage 3": config.stage == 3,
        "ZenFlow": config.get(*ZERO, "zenflow") not in (None, AUTO),
        "DeepCompile": config.is_on(ROOT / "compile", "deepcompile"),
    }
    for reason, applies in reasons.items():
        if applies:
            yield Finding(
                path=ROOT / "gradient_allreduce_op",
                message=f'gradient_allreduce_op "sum" is not supported with {reason}: {REJECTED}',
                help='write "mean"',
            )


@refusal("DSC417", triggers="managed_gradient_accumulation", stops="engine AssertionError")
def unmanaged_accumulation(config: Context) -> Iterator[Finding]:
    """`managed_gradient_accumulation: false` is not supported with this feature

    It supports `overlap_comm` only at stages 2 and 3, and does not support DeepCompile.

    bad: {"train_batch_size": 8, "managed_gradient_accumulation": false, "zero_optimization":
        {"stage": 1, "overlap_comm": true}}
    good: {"train_batch_size": 8, "managed_gradient_accumulation": false, "zero_optimization":
        {"stage": 2, "overlap_comm": true}}
    """
    value = config.get("managed_gradient_accumulation")
    if not config.has("managed_gradient_accumulation") or value:
        return
    reasons = {
        f"overlap_comm at ZeRO stage {config.stage}": config.stage < 2 and config.overlap_comm,
        "DeepCompile": config.is_on(ROOT / "compile", "deepcompile"),
    }
    for reason, applies in reasons.items():
        if applies:
            yield Finding(
                path=ROOT / "managed_gradient_accumulation",
                message=f"managed_gradient_accumulation false does not support {reason}: {AT_INIT}",
                help='delete it, or set "overlap_comm": false',
            )


@rule("DSC418", Effect.INERT, triggers="zero_optimization")
def contiguous_gradients_forced(config: Context) -> Iterator[Finding]:
    """`contiguous_gradients: false` has no effect with optimizer offload

    Optimizer offload at stages 1 and 2 always copies gradients contiguously.

    bad: {"train_batch_size": 8, "zero_optimization": {"stage": 2, "contiguous_gradients": false,
        "offload_optimizer": {"device": "cpu"}}}
    good: {"train_batch_size": 8, "zero_optimization": {"stage": 2, "offload_optimizer": {"device":
        "cpu"}}}
    """
    if config.stage not in (1, 2) or config.offload("offload_optimizer") == "none":
        return
    given = config.written(ZERO, "contiguous_gradients")
    if given and not config.in_force(ZERO, "contiguous_gradients"):
        yield Finding(
            path=ZERO / "contiguous_gradients",
            message="contiguous_gradients false has no effect: optimizer offload enables it",
            help="delete it",
        )


@rule(
    "DSC419",
    Effect.REFUSED,
    also=(Effect.INERT,),
    triggers="zero_optimization",
    stops="zero AssertionError",
    from_source="needs 8 ranks",
)
def hpz_group(config: Context) -> Iterator[Finding]:
    """`zero_hpz_partition_size` does not divide the number of ranks

    DeepSpeed silently reduces a larger partition to the number of ranks (`--world-size`).

    with: gpus=8
    bad: {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3,
        "zero_hpz_partition_size": 3}}
    good: {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3,
        "zero_hpz_partition_size": 4}}
    """
    world = config.facts.world_size
    size = config.in_force(ZERO, "zero_hpz_partition_size")
    if world is None or config.stage != 3 or size <= 1:
        return
    if size > world:
        yield Finding(
            path=ZERO / "zero_hpz_partition_size",
            message=f"zero_hpz_partition_size {size} exceeds {world} ranks: DeepSpeed uses {world}",
            help="write the number of GPUs per node",
            effect=Effect.INERT,
        )
    elif world % size:
        yield Finding(
            path=ZERO / "zero_hpz_partition_size",
            message=f"zero_hpz_partition_size {size} does not divide {world} ranks: {AT_INIT}",
            help=f"write one of {', '.join(str(n) for n in range(1, world + 1) if world % n == 0)}",
        )


@rule("DSC420", Effect.REFUSED, triggers="zero_optimization", stops="zero AssertionError")
def quantized_gradients_group(config: Context) -> Iterator[Finding]:
    """`zero_quantized_gradients` requires `reduce_scatter`

    bad: {"train_batch_size": 8, "zero_optimization": {"stage": 3, "zero_quantized_gradients": true,
        "reduce_scatter": false}}
    good: {"train_batch_size": 8, "zero_optimization": {"stage": 3, "zero_quantized_gradients":
        true}}
    """
    quantized = config.in_force(ZERO, "zero_quantized_gradients")
    if config.stage == 3 and quantized and not config.in_force(ZERO, "reduce_scatter"):
        yield Finding(
            path=ZERO / "zero_quantized_gradients",
            message="zero_quantized_gradients requires reduce_scatter, which is disabled: "
            f"{AT_INIT}",
            help='set "reduce_scatter": true',
        )


NO_CLIPPING = 1e9
"""Clipping norm above any realistic gradient norm."""


@rule("DSC421", Effect.INERT, triggers="gradient_clipping")
def clipping_without_effect(config: Context) -> Iterator[Finding]:
    """`gradient_clipping` so large that it has no effect

    Infinity and NaN have no effect either. 0 disables clipping.

    bad: {"train_batch_size": 8, "gradient_clipping": 1e12}
    good: {"train_batch_size": 8, "gradient_clipping": 1.0}
    """
    value = config.number("gradient_clipping")
    if value is not None and not value < NO_CLIPPING:  # also true of NaN, which YAML can write
        yield Finding(
            path=GRADIENT_CLIPPING,
            message=f"gradient_clipping is {value:g}: gradients are never clipped",
            help='write "gradient_clipping": 0 to disable clipping',
        )
