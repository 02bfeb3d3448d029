"""Rules for data_types and the enabled precision."""

from collections.abc import Iterator

from dsconfig.checks.context import Context
from dsconfig.checks.registry import refusal, rule
from dsconfig.checks.rule import AT_INIT, Finding, reaches_deepspeed
from dsconfig.report import Effect
from dsconfig.schema.paths import DATA_TYPES, GRAD_ACCUM_DTYPE
from dsconfig.schema.value_checks import DTYPE_OF_NAME


def model_dtype(config: Context) -> str | None:
    """Return the dtype of the weights, or None if "auto" decides it."""
    for block in ("fp16", config.bf16_block):
        if config.get(block, "enabled") == "auto":
            return None
    return "fp16" if config.fp16 else "bf16" if config.bf16 else "fp32"


def named_dtype(config: Context, name: str) -> str | None:
    """Return the dtype that a key of data_types names, or None if absent or unknown."""
    value = config.get("data_types", name)
    return DTYPE_OF_NAME.get(value) if isinstance(value, str) else None


@rule("DSC331", Effect.REFUSED, triggers="data_types", stops="engine AssertionError")
def param_dtype_conflict(config: Context) -> Iterator[Finding]:
    """`param_dtype` contradicts the enabled precision

    bad: {"train_batch_size": 8, "bf16": {"enabled": true}, "data_types": {"param_dtype": "fp16"}}
    good: {"train_batch_size": 8, "bf16": {"enabled": true}, "data_types": {"param_dtype": "bf16"}}
    """
    wanted, dtype = named_dtype(config, "param_dtype"), model_dtype(config)
    if wanted and dtype and wanted != dtype:
        yield Finding(
            path=DATA_TYPES / "param_dtype",
            message=f"param_dtype {wanted} contradicts the enabled precision ({dtype}): {AT_INIT}",
            help="delete it; fp16 and bf16 set the dtype",
        )


@refusal("DSC332", triggers="data_types", stops="zero NotImplementedError")
def grad_accum_dtype_needs_zero(config: Context) -> Iterator[Finding]:
    """`grad_accum_dtype` requires ZeRO

    Without ZeRO, gradients are accumulated in the dtype of the weights.

    bad: {"train_batch_size": 8, "bf16": {"enabled": true}, "data_types": {"grad_accum_dtype":
        "fp32"}}
    good: {"train_batch_size": 8, "bf16": {"enabled": true}, "zero_optimization": {"stage": 1},
        "data_types": {"grad_accum_dtype": "fp32"}}
    """
    wanted, dtype = named_dtype(config, "grad_accum_dtype"), model_dtype(config)
    if config.stage == 0 and config.stage_is_known and wanted and dtype and wanted != dtype:
        yield Finding(
            path=GRAD_ACCUM_DTYPE,
            message=f"grad_accum_dtype {wanted} with {dtype} weights requires ZeRO: {AT_INIT}",
            help='add "zero_optimization": {"stage": 1}',
        )


@rule(
    "DSC333", Effect.REFUSED, also=(Effect.INERT,), triggers="data_types", stops="step RuntimeError"
)
def integer_accumulation(config: Context) -> Iterator[Finding]:
    """Gradients cannot be accumulated in int8

    DeepSpeed accepts the name, and the first step fails. dsengine accumulates in the dtype of the
    model.

    bad: {"train_batch_size": 8, "zero_optimization": {"stage": 1}, "data_types":
        {"grad_accum_dtype": "int8"}}
    good: {"train_batch_size": 8, "zero_optimization": {"stage": 1}, "data_types":
        {"grad_accum_dtype": "fp32"}}
    """
    if config.stage and named_dtype(config, "grad_accum_dtype") == "int8":
        stops = config.runs_deepspeed
        yield Finding(
            path=GRAD_ACCUM_DTYPE,
            message="gradients cannot be accumulated in int8: "
            + ("DeepSpeed fails at the first step" if stops else "it has no effect in dsengine"),
            help='write "fp32"',
            effect=None if stops else Effect.INERT,
            applies_to=reaches_deepspeed if stops else None,
        )
