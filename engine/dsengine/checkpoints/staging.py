"""Copies of tensors in host memory, taken so that training can go on while they are written."""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from dsengine.torch_private import as_shard


@torch.no_grad()
def staged(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return host copies of the local parts, with the same sharding."""
    copies = {name: _host_copy(tensor) for name, tensor in tensors.items()}
    if torch.cuda.is_available() and any(t.is_cuda for t in tensors.values()):
        torch.cuda.synchronize()
    return copies


def _host_copy(tensor: Tensor) -> Tensor:
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    copy = torch.empty_like(local, device="cpu", pin_memory=local.is_cuda)
    copy.copy_(local, non_blocking=local.is_cuda)
    return as_shard(copy, tensor) if isinstance(tensor, DTensor) else copy
