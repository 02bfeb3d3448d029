"""data_types and communication types against the precision that is on."""

from collections.abc import Iterator

from dsconfig.checks.context import Context
from dsconfig.checks.registry import refusal, rule
from dsconfig.checks.rule import AT_INIT, Finding, reaches_deepspeed
from dsconfig.report import Effect
from dsconfig.schema.value_checks import DTYPE_OF_NAME


def model_dtype(config: Context) -> str | None:
    """The format of the weights; None where "auto" decides it."""
    for block in ("fp16", config.bf16_block):
        if config.get(block, "enabled") == "auto":
            return None
    return "fp16" if config.fp16 else "bf16" if config.bf16 else "fp32"


def named_dtype(config: Context, name: str) -> str | None:
    """The format a key of data_types names; None where it is absent or not understood."""
    value = config.get("data_types", name)
    return DTYPE_OF_NAME.get(value) if isinstance(value, str) else None


@rule("DSC331", Effect.REFUSED, triggers="data_types", late=True)
def param_dtype_conflict(config: Context) -> Iterator[Finding]:
    """data_types.param_dtype names another format than fp16 or bf16 switch on.

    bad: {"train_batch_size": 8, "bf16": {"enabled": true}, "data_types": {"param_dtype": "fp16"}}
    good: {"train_batch_size": 8, "bf16": {"enabled": true}, "data_types": {"param_dtype": "bf16"}}
    """
    wanted, dtype = named_dtype(config, "param_dtype"), model_dtype(config)
    if wanted and dtype and wanted != dtype:
        yield Finding(
            path=("data_types", "param_dtype"),
            message=f"param_dtype {wanted} contradicts the enabled precision ({dtype}): {AT_INIT}",
            help="delete it; fp16 and bf16 decide the format",
        )


@refusal("DSC332", triggers="data_types", late=True)
def grad_accum_dtype_needs_zero(config: Context) -> Iterator[Finding]:
    """Without ZeRO gradients are summed in the format of the weights, and in no other.

    bad: {"train_batch_size": 8, "bf16": {"enabled": true}, "data_types": {"grad_accum_dtype":
        "fp32"}}
    good: {"train_batch_size": 8, "bf16": {"enabled": true}, "zero_optimization": {"stage": 1},
        "data_types": {"grad_accum_dtype": "fp32"}}
    """
    wanted, dtype = named_dtype(config, "grad_accum_dtype"), model_dtype(config)
    if config.stage == 0 and config.stage_is_known and wanted and dtype and wanted != dtype:
        yield Finding(
            path=("data_types", "grad_accum_dtype"),
            message=f"grad_accum_dtype {wanted} with {dtype} weights needs ZeRO: {AT_INIT}",
            help='add "zero_optimization": {"stage": 1}',
        )


@rule("DSC333", Effect.REFUSED, also=(Effect.INERT,), triggers="data_types", late=True)
def integer_accumulation(config: Context) -> Iterator[Finding]:
    """int8 is a name DeepSpeed knows, and no format for gradients: the first step stops.

    dsengine sums in the format of the model.

    bad: {"train_batch_size": 8, "zero_optimization": {"stage": 1}, "data_types":
        {"grad_accum_dtype": "int8"}}
    good: {"train_batch_size": 8, "zero_optimization": {"stage": 1}, "data_types":
        {"grad_accum_dtype": "fp32"}}
    """
    if config.stage and named_dtype(config, "grad_accum_dtype") == "int8":
        stops = config.runs_deepspeed
        yield Finding(
            path=("data_types", "grad_accum_dtype"),
            message="gradients cannot be summed in 8-bit integers: "
            + ("DeepSpeed stops at the first step" if stops else "it has no effect in dsengine"),
            help='write "fp32"',
            effect=None if stops else Effect.INERT,
            applies_to=reaches_deepspeed if stops else None,
        )
