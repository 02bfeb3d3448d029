"""Gathering full weights from shards, one parameter at a time."""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from dsengine.checkpoints.state import TrainingState
from dsengine.parameters.quantized import packed_names
from dsengine.parameters.shards import full_tensor_of
from dsengine.topology import rank
from dsengine.torch_private.tensors import local_part, storage_key


def exported_dtypes(
    tensors: Mapping[str, Tensor], dtype: torch.dtype | None
) -> dict[str, torch.dtype]:
    """Return by name ``dtype`` for floating-point tensors, and the tensor's own for others.

    Packed weights and their constants keep theirs.
    """
    packed = packed_names(tensors)
    return {
        name: tensor.dtype
        if dtype is None or name in packed or not tensor.is_floating_point()
        else dtype
        for name, tensor in tensors.items()
    }


@torch.no_grad()
def full_tensors(
    tensors: Mapping[str, Tensor], dtypes: Mapping[str, torch.dtype], *, keep: bool
) -> Iterator[tuple[str, Tensor]]:
    """Gather one tensor at a time; yield (name, host copy) if ``keep``.

    Collective: every rank must exhaust it. A rank has one full tensor in memory besides those its
    caller keeps. Tensors are cast before the gather, so that 16-bit weights are sent as such.
    """
    for name, tensor in tensors.items():
        cast = tensor.to(dtypes[name])
        full = full_tensor_of(cast) if isinstance(cast, DTensor) else cast
        if keep:
            # A copy even on the host: training must not change what is written.
            yield name, full.to("cpu", copy=full is tensor).contiguous()


def full_state_dict(
    state: TrainingState,
    *,
    dtype: torch.dtype | None = None,
    exclude_frozen: bool = False,
    rank0_only: bool = True,
) -> dict[str, Tensor]:
    """Return the full state dict on the host of rank 0 (or all ranks), {} on the others.

    Tied weights appear under each of their names, as in ``module.state_dict()``. Collective.
    """
    keep = not rank0_only or rank() == 0
    weights = state.weights(exclude_frozen=exclude_frozen)
    full = dict(full_tensors(weights, exported_dtypes(weights, dtype), keep=keep))
    return full | {name: full[first] for name, first in state.tied().items() if first in full}


@torch.no_grad()
def full_copy(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the full tensor in ``dtype`` and in memory of its own. Collective for shards."""
    cast = tensor.to(dtype)
    full = full_tensor_of(cast) if isinstance(cast, DTensor) else cast
    is_own = storage_key(full) != storage_key(local_part(tensor))
    return full.contiguous() if is_own else full.clone(memory_format=torch.contiguous_format)
