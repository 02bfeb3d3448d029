"""torch.autocast under ZeRO."""

from dsconfig.schema.by_hand import A_DTYPE, CLASS_NAMES
from dsconfig.schema.declare import Block, key
from dsconfig.schema.types import TorchFormat


class TorchAutocast(Block, since="0.17.2"):
    """torch.autocast picks the precision of each operator; ZeRO keeps full weights."""

    enabled: bool = key(False, "Turns autocast on.", see=("bf16", "fp16"))
    dtype: TorchFormat | None = key(
        None,
        "Format that autocast casts to; null is none at all.",
        checked="0.17.2",
        by_hand=(A_DTYPE,),
    )
    lower_precision_safe_modules: list[str] | None = key(
        None,
        "Class paths whose parameters travel in dtype; null is Linear and the Conv classes.",
        checked="0.17.2",
        by_hand=(CLASS_NAMES,),
    )
