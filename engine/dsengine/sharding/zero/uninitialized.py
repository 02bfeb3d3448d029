"""Finding weights that were not initialized, or not loaded.

transformers skips the initialization of weights that a checkpoint will contain. If the checkpoint
then lacks one, or its loader skips it, the weight is what the memory contained before. Under
``zero.Init`` such memory is NaN.
"""

import inspect
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from dsengine.parameters.shards import chunk_of
from dsengine.sharding.zero.partitioned import PartitionedParameter
from dsengine.topology import current
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


def is_loading() -> bool:
    """Whether transformers' ``from_pretrained`` is building a model, to load it next."""
    frame = inspect.currentframe()
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if frame.f_code.co_name == "from_pretrained" and module == "transformers.modeling_utils":
            return True
        frame = frame.f_back
    return False


def expect_checkpoint(parameter: Tensor) -> None:
    """Record that ``from_pretrained`` will load ``parameter`` if its checkpoint contains it."""
    vars(parameter)["_dsengine_expects_checkpoint"] = True


def expects_checkpoint(parameter: Tensor) -> bool:
    return "_dsengine_expects_checkpoint" in vars(parameter)


def has_value(parameter: Tensor, full: Tensor) -> bool:
    """Whether this rank's shard of a partitioned parameter is that of ``full``."""
    if not isinstance(parameter, PartitionedParameter):
        return False
    with plain_tensors():
        shard = parameter._shard
        group = current().group_for(shard, "all")
        own = chunk_of(full, group.rank(), group.size())
        return own.shape == shard.shape and torch.equal(own.to(shard.dtype), shard)
