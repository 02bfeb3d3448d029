"""Copies of tensors in host memory, taken so that training can go on while they are written.

[Note: memory that is used again]
The copies of one save take those of the save before, which is written by then: a page that a
process touches for the first time costs several times its copy, and pinning it more than that. So
a run that saves asynchronously keeps its states once more in host memory until it ends.
"""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from dsengine.torch_private import as_shard


class Staging:
    """Host memory for the local parts of the tensors of a save."""

    def __init__(self) -> None:
        self._held: dict[str, Tensor] = {}

    @torch.no_grad()
    def take(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return host copies of the local parts, with the same sharding; good until the next."""
        self._held = {name: self._room(name, _local(each)) for name, each in tensors.items()}
        for name, tensor in tensors.items():
            local = _local(tensor)
            self._held[name].copy_(local, non_blocking=local.is_cuda)
        if torch.cuda.is_available() and any(t.is_cuda for t in tensors.values()):
            torch.cuda.synchronize()
        return {
            name: as_shard(self._held[name], tensor) if isinstance(tensor, DTensor) else copy
            for (name, tensor), copy in zip(tensors.items(), self._held.values(), strict=True)
        }

    def _room(self, name: str, local: Tensor) -> Tensor:
        held = self._held.get(name)
        if held is not None and (held.shape, held.dtype) == (local.shape, local.dtype):
            return held
        return torch.empty_like(local, device="cpu", pin_memory=local.is_cuda)


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
