"""Sharded parameters: building and gathering them, and their status."""

from collections.abc import Callable
from typing import Any

import torch

from dsengine.deepspeed.accelerator import get_accelerator
from dsengine.sharding.zero.external import (
    register_external_parameter,
    unregister_external_parameter,
)
from dsengine.sharding.zero.gathered import GatheredParameters
from dsengine.sharding.zero.init import Init
from dsengine.sharding.zero.parameter_attributes import ZeroParamType
from dsengine.sharding.zero.status import ZeroParamStatus

_orig_torch_arange = torch.arange


def zero_wrapper_for_fp_tensor_constructor(
    fn: Callable[..., Any],
    target_fp_dtype: torch.dtype | None = None,
    target_device: torch.device | None = None,
) -> Callable[..., Any]:
    """Return ``fn`` unchanged: Init does not wrap torch's constructors.

    transformers replaces this function while it builds a model, to prevent casts of position
    tensors.
    """
    del target_fp_dtype, target_device
    return fn


__all__ = [
    "GatheredParameters",
    "Init",
    "ZeroParamStatus",
    "ZeroParamType",
    "get_accelerator",
    "register_external_parameter",
    "unregister_external_parameter",
    "zero_wrapper_for_fp_tensor_constructor",
]
