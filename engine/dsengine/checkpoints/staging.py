"""Copies of tensors in host memory, so that training continues while they are written.

[Note: reused memory]
Each save reuses the copies of the previous one, which has been written by then: touching a page
for the first time costs several times its copy, and pinning it even more. So a run that saves
asynchronously keeps a second copy of its states in host memory until it ends.
"""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from dsengine.communication.devices import wait_for_device
from dsengine.tiers import memory
from dsengine.torch_private.tensors import as_shard


class Staging:
    """Host memory for the local shards of a save."""

    def __init__(self) -> None:
        self._copies: dict[str, Tensor] = {}

    @torch.no_grad()
    def take(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return host copies of the local shards, sharded alike; valid until the next call."""
        self._copies = {name: self._buffer(name, _local(t)) for name, t in tensors.items()}
        for name, tensor in tensors.items():
            local = _local(tensor)
            self._copies[name].copy_(local, non_blocking=self._copies[name].is_pinned())
        for device in {tensor.device for tensor in tensors.values()}:
            wait_for_device(device)
        return {
            name: as_shard(self._copies[name], tensor) if isinstance(tensor, DTensor) else copy
            for (name, tensor), copy in zip(tensors.items(), self._copies.values(), strict=True)
        }

    def _buffer(self, name: str, local: Tensor) -> Tensor:
        copy = self._copies.get(name)
        if copy is not None and (copy.shape, copy.dtype) == (local.shape, local.dtype):
            return copy
        pin = memory.can_pin() and not memory.is_on_host(local)
        return memory.empty_on_host(local.shape, pin=pin, dtype=local.dtype)


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
