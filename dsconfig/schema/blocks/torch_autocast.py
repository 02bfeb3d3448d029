"""torch.autocast under ZeRO."""

from typing import Literal

from dsconfig.schema.declare import Block, key


class TorchAutocast(Block, since="0.17.2"):
    """Lets torch.autocast choose precision per operator, while ZeRO keeps full-precision weights."""

    enabled: bool = key(False, "Turns autocast on; unknown keys in this block are ignored.")
    dtype: (
        Literal[
            "bfloat16",
            "bf16",
            "torch.bfloat16",
            "float16",
            "fp16",
            "half",
            "torch.float16",
            "float32",
            "fp32",
            "float",
            "torch.float32",
            "int8",
            "torch.int8",
        ]
        | None
    ) = key(None, "Autocast dtype; stays unset when the key is missing.", checked="0.17.2")
    lower_precision_safe_modules: list[str] | None = key(
        None,
        "Full class paths whose parameters are reduced in the lower dtype; defaults to Linear and Conv1d/2d/3d.",
        checked="0.17.2",
    )
