"""Formats of accumulation, parameters and buffers."""

from typing import Literal

from dsconfig.schema.declare import Block, key
from dsconfig.schema.types import OrList


class DataTypes(Block, since="0.7.6"):
    """Overrides for accumulation, parameter and buffer formats."""

    grad_accum_dtype: (
        Literal[
            "fp32",
            "fp16",
            "bf16",
            "float32",
            "float16",
            "bfloat16",
            "half",
            "float",
            "torch.float32",
            "torch.float16",
            "torch.bfloat16",
            "int8",
            "torch.int8",
        ]
        | None
    ) = key(
        None,
        "Gradient accumulation format; follows the model format when absent. Checked only when the engine starts.",
    )
    param_dtype: (
        Literal[
            "fp32",
            "fp16",
            "bf16",
            "float32",
            "float16",
            "bfloat16",
            "half",
            "float",
            "torch.float32",
            "torch.float16",
            "torch.bfloat16",
            "int8",
            "torch.int8",
        ]
        | None
    ) = key(None, "Statement of the parameter format; must agree with fp16/bf16.", since="0.19.2")
    buffer_dtype: (
        Literal[
            "fp32",
            "fp16",
            "bf16",
            "float32",
            "float16",
            "bfloat16",
            "half",
            "float",
            "torch.float32",
            "torch.float16",
            "torch.bfloat16",
            "int8",
            "torch.int8",
        ]
        | None
    ) = key(
        None,
        "Format that model buffers are cast to; buffers keep their own format when absent.",
        since="0.19.2",
    )
    keep_in_fp32_modules: OrList[str] = key(
        "auto",
        "Buffers to leave in fp32: the literal auto, or name patterns; an empty list keeps none.",
        since="0.19.8",
        checked="0.19.8",
    )
