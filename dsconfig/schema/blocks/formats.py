"""Formats beside fp16 and bf16: torch.autocast, accumulation, parameters, buffers."""

from dsconfig.schema.declare import Block, key
from dsconfig.schema.types import OrAuto, OrNativeAuto, TorchFormat
from dsconfig.schema.value_checks import A_DTYPE, A_DTYPE_LATER, CLASS_NAMES, NAME_PATTERNS


class TorchAutocast(Block, since="0.17.2"):
    """torch.autocast picks the precision of each operator; ZeRO keeps full weights."""

    enabled: bool = key(False, "Turns autocast on.", see=("bf16", "fp16"))
    dtype: TorchFormat | None = key(
        None,
        "Format that autocast casts to; null is none at all.",
        checked="0.17.2",
        checks=(A_DTYPE,),
    )
    lower_precision_safe_modules: list[str] | None = key(
        None,
        "Class paths whose parameters travel in dtype; null is Linear and the Conv classes.",
        checked="0.17.2",
        checks=(CLASS_NAMES,),
    )


class DataTypes(Block, since="0.7.6"):
    """Formats that do not follow from the precision; checked when the engine is built."""

    grad_accum_dtype: OrAuto[TorchFormat] | None = key(
        None,
        "Format in which gradients accumulate; null follows the model.",
        memory="fp32 accumulation doubles 16-bit gradients",
        checks=(A_DTYPE_LATER,),
    )
    param_dtype: TorchFormat | None = key(
        None,
        "Format of the parameters; must agree with fp16 and bf16.",
        since="0.19.2",
        checks=(A_DTYPE_LATER,),
    )
    buffer_dtype: TorchFormat | None = key(
        None,
        "Format that buffers are cast to; null leaves them.",
        since="0.19.2",
        checks=(A_DTYPE_LATER,),
    )
    keep_in_fp32_modules: OrNativeAuto[list[str]] = key(
        "auto",
        "Name patterns of buffers that stay in fp32; an empty list keeps none.",
        since="0.19.8",
        checked="0.19.8",
        checks=(NAME_PATTERNS,),
    )
