"""Whole weights from shards, one parameter at a time."""

from collections.abc import Iterator, Mapping

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from dsengine.checkpoints.state import TrainingState
from dsengine.parameters.shards import full_tensor_of


def exported_dtype(tensor: Tensor, dtype: torch.dtype | None) -> torch.dtype:
    """Return ``dtype`` for floating-point tensors; others keep theirs."""
    return dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype


@torch.no_grad()
def whole_tensors(
    tensors: Mapping[str, Tensor], dtype: torch.dtype | None, *, keep: bool
) -> Iterator[tuple[str, Tensor]]:
    """Gather one tensor after the other; yield (name, host copy) where ``keep``.

    Collective: every rank runs to the end. At any time a rank holds one whole tensor besides
    what its caller kept. The cast comes before the gather, so 16-bit weights travel as such.
    """
    for name, tensor in tensors.items():
        cast = tensor.to(exported_dtype(tensor, dtype))
        whole = full_tensor_of(cast) if isinstance(cast, DTensor) else cast
        if keep:
            # A copy even on the host: the file must not follow a training that goes on.
            yield name, whole.to("cpu", copy=whole is tensor).contiguous()


def whole_state_dict(
    state: TrainingState,
    *,
    dtype: torch.dtype | None = None,
    exclude_frozen: bool = False,
    rank0_only: bool = True,
) -> dict[str, Tensor]:
    """Return the whole state dict on the host of rank 0 (of all ranks); empty on the others.

    Tied weights come under each of their names, as in ``module.state_dict()``. Collective.
    """
    keep = not rank0_only or not dist.is_initialized() or dist.get_rank() == 0
    weights = state.weights(exclude_frozen=exclude_frozen)
    whole = dict(whole_tensors(weights, dtype, keep=keep))
    return whole | {name: whole[first] for name, first in state.tied().items() if first in whole}
