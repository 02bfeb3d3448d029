"""Rules for DeepCompile and engine.compile()."""

from collections.abc import Iterator

from dsconfig.checks.context import Context
from dsconfig.checks.registry import refusal, rule
from dsconfig.checks.rule import Finding, reaches_deepspeed
from dsconfig.report import Effect
from dsconfig.schema.paths import ROOT, TENSOR_PARALLEL

COMPILE = ROOT / "compile"
LATER = "engine.compile() fails"
TARGETS = ("offload_activation", "offload_parameters", "offload_opt_states")


def _on(config: Context, name: str) -> bool:
    return config.is_on(COMPILE, name)


def _passes(config: Context) -> list[str]:
    return config.in_force(COMPILE, "passes") or []


@refusal(
    "DSC471",
    triggers="compile",
    stops="compile ValueError",
    from_source="only engine.compile() fails",
)
def compile_offload_targets(config: Context) -> Iterator[Finding]:
    """DeepCompile supports one offload target

    It must not be one that ZeRO already offloads.

    bad: {"train_batch_size": 8, "zero_optimization": {"stage": 3}, "compile": {"deepcompile": true,
        "offload_activation": true, "offload_parameters": true}}
    good: {"train_batch_size": 8, "zero_optimization": {"stage": 3}, "compile": {"deepcompile":
        true, "offload_activation": true}}
    """
    chosen = [name for name in TARGETS if _on(config, name)]
    if len(chosen) > 1:
        yield Finding(
            path=COMPILE / chosen[0],
            message=f"compile.{' and compile.'.join(chosen)} are mutually exclusive: {LATER}",
            help="keep one of them",
        )
    if _on(config, "offload_opt_states") and config.offload("offload_optimizer") != "none":
        yield Finding(
            path=COMPILE / "offload_opt_states",
            message=f"offload_opt_states and offload_optimizer offload the same states: {LATER}",
            help="keep one of them",
        )


@refusal(
    "DSC472",
    triggers="compile",
    stops="compile ValueError",
    from_source="only engine.compile() fails",
)
def compile_passes(config: Context) -> Iterator[Finding]:
    """DeepCompile pass `autotp` cannot be combined with others

    bad: {"train_batch_size": 8, "zero_optimization": {"stage": 1}, "compile": {"deepcompile": true,
        "passes": ["autotp", "z1"]}}
    good: {"train_batch_size": 8, "zero_optimization": {"stage": 1}, "compile": {"deepcompile":
        true, "passes": ["z1"]}}
    """
    passes = _passes(config)
    if "autotp" in passes and len(set(passes)) > 1:
        yield Finding(
            path=COMPILE / "passes",
            message=f"the pass autotp cannot be combined with others: {LATER}",
            help='write "passes": ["autotp"]',
        )


@rule("DSC473", Effect.INERT, triggers="compile", applies_to=reaches_deepspeed)
def compile_falls_back(config: Context) -> Iterator[Finding]:
    """DeepCompile falls back to `torch.compile`

    DeepCompile requires ZeRO; the pass `autosp` requires stage 0 or 1, and the pass `autotp`
    requires `autotp_size`.

    bad: {"train_batch_size": 8, "zero_optimization": {"stage": 0}, "compile": {"deepcompile":
        true}}
    good: {"train_batch_size": 8, "zero_optimization": {"stage": 1}, "compile": {"deepcompile":
        true}}
    """
    passes = _passes(config)
    split = config.in_force(TENSOR_PARALLEL, "autotp_size")
    if "autosp" in passes and config.stage > 1:
        yield _fallback("passes", f"the pass autosp does not support ZeRO stage {config.stage}")
    elif "autotp" in passes and split <= 1:
        yield _fallback("passes", "the pass autotp requires tensor_parallel.autotp_size above 1")
    elif _on(config, "deepcompile") and config.stage == 0 and not passes:
        yield _fallback("deepcompile", "DeepCompile requires ZeRO stage 1, 2 or 3")


def _fallback(name: str, reason: str) -> Finding:
    return Finding(
        path=COMPILE / name,
        message=f"{reason}: engine.compile() falls back to torch.compile",
        help="delete it, or set what it requires",
    )


@refusal(
    "DSC474",
    triggers="compile",
    stops="compile ValueError",
    from_source="only engine.compile() fails",
)
def compile_with_experts(config: Context) -> Iterator[Finding]:
    """`autoep_non_moe` cannot be combined with this feature

    `autoep_non_moe` applies torch.compile around expert layers. It does not support DeepCompile,
    tensor or sequence parallelism, ZeRO stage 3 or offload.

    bad: {"train_batch_size": 8, "zero_optimization": {"stage": 3}, "compile": {"autoep_non_moe":
        true}}
    good: {"train_batch_size": 8, "zero_optimization": {"stage": 2}, "compile": {"autoep_non_moe":
        true}}
    """
    if not _on(config, "autoep_non_moe"):
        return
    reasons = {
        "DeepCompile": _on(config, "deepcompile"),
        "tensor parallelism": config.in_force(TENSOR_PARALLEL, "autotp_size") > 1,
        "sequence parallelism": (config.number("sequence_parallel_size") or 1) > 1,
        "ZeRO stage 3": config.stage == 3,
        "offload": config.offload("offload_optimizer") != "none"
        or config.offload("offload_param") != "none",
        "comm_backend deepep": config.get("expert_parallel", "comm_backend") == "deepep",
    }
    for reason, applies in reasons.items():
        if applies:
            yield Finding(
                path=COMPILE / "autoep_non_moe",
                message=f"autoep_non_moe does not support {reason}: {LATER}",
                help="disable one of the two",
            )


@rule("DSC475", Effect.NOTE, triggers="compile", applies_to=reaches_deepspeed)
def compile_only_on_call(config: Context) -> Iterator[Finding]:
    """`deepcompile` requires a call of `engine.compile()`

    bad: {"train_batch_size": 8, "zero_optimization": {"stage": 1}, "compile": {"deepcompile":
        true}}
    good: {"train_batch_size": 8, "zero_optimization": {"stage": 1}}
    """
    if _on(config, "deepcompile") and config.stage:
        yield Finding(
            path=COMPILE / "deepcompile",
            message="deepcompile has no effect unless the script calls engine.compile()",
            help="call engine.compile() after deepspeed.initialize()",
        )
