"""Marking memory that a constructor allocates and does not write, so that it can be found later.

transformers skips the initialization of weights that a checkpoint will contain. If the checkpoint
then lacks one, or its loader skips it, the weight is what the memory contained before. Under
``zero.Init`` such memory is NaN.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from dsengine.sharding.zero.partitioned import PartitionedParameter
from dsengine.torch_private.tensors import plain_tensors

_T: Any = torch.Tensor
ALLOCATIONS = {
    torch.empty,
    torch.empty_like,
    torch.empty_strided,
    _T.new_empty,
    _T.new_empty_strided,
}
MARKED = {torch.float64, torch.float32, torch.bfloat16, torch.float16}


class MarkUninitialized(TorchFunctionMode):
    """Fills the floating-point results of ``torch.empty`` and similar functions with NaN."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in ALLOCATIONS and result.dtype in MARKED and not result.is_meta:
            result.detach().fill_(torch.nan)
        return result


def uninitialized(model: nn.Module) -> list[str]:
    """Return names of partitioned parameters with NaN in this rank's shard."""
    with plain_tensors():
        return [
            name
            for name, parameter in model.named_parameters()
            if isinstance(parameter, PartitionedParameter) and _has_nan(parameter._shard)
        ]


def _has_nan(shard: Tensor) -> bool:
    # The minimum of a tensor with NaN is NaN; unlike isnan it needs no mask of the same size.
    return shard.dtype in MARKED and shard.numel() > 0 and bool(shard.min().isnan())
