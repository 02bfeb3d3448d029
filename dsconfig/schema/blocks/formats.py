"""torch.autocast, and dtypes of gradient accumulation, parameters and buffers."""

from dsconfig.schema.declare import Block, key
from dsconfig.schema.types import OrAuto, OrNativeAuto, TorchFormat
from dsconfig.schema.value_checks import A_DTYPE, A_DTYPE_LATER, CLASS_NAMES, NAME_PATTERNS


class TorchAutocast(Block, since="0.17.2"):
    """torch.autocast; ZeRO keeps fp32 weights."""

    enabled: bool = key(False, "Enables torch.autocast.", see=("bf16", "fp16"))
    dtype: TorchFormat | None = key(
        None,
        "Autocast dtype; null: no cast.",
        checked="0.17.2",
        checks=(A_DTYPE,),
    )
    lower_precision_safe_modules: list[str] | None = key(
        None,
        "Module classes whose parameters are communicated in dtype; null: Linear and Conv classes.",
        checked="0.17.2",
        checks=(CLASS_NAMES,),
    )


class DataTypes(Block, since="0.7.6"):
    """Dtypes that do not follow from the training precision; checked at engine initialization."""

    grad_accum_dtype: OrAuto[TorchFormat] | None = key(
        None,
        "Dtype of gradient accumulation; null: the model's dtype.",
        memory="fp32 accumulation doubles 16-bit gradients",
        checks=(A_DTYPE_LATER,),
    )
    param_dtype: TorchFormat | None = key(
        None,
        "Dtype of parameters; must agree with fp16 and bf16.",
        since="0.19.2",
        checks=(A_DTYPE_LATER,),
    )
    buffer_dtype: TorchFormat | None = key(
        None,
        "Dtype that buffers are cast to; null: unchanged.",
        since="0.19.2",
        checks=(A_DTYPE_LATER,),
    )
    keep_in_fp32_modules: OrNativeAuto[list[str]] = key(
        "auto",
        "Name patterns of buffers kept in fp32; an empty list: none.",
        since="0.19.8",
        checked="0.19.8",
        checks=(NAME_PATTERNS,),
    )
