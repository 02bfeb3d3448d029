"""States that leave the device for a while: ``engine.offload_states`` and ``reload_states``.

[Note: empty storages]
What leaves is a storage: its bytes are copied to host memory and it is emptied in its place, as
``fully_shard`` frees what it has gathered. Every tensor on it (a parameter, its shard, what the
optimizer or the reducer holds) stays the same object, and is what it was once the bytes are back.
PyTorch refuses operations on a tensor whose storage is empty.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum

import torch
from torch import Tensor

from dsengine.torch_private import local_part, storage_key


class OffloadStateTypeEnum(StrEnum):
    """Kinds of states; the names are DeepSpeed's."""

    optim_states = "optim_states"
    """What the optimizer keeps of each parameter."""
    hp_params = "hp_params"
    """The fp32 masters, or this rank's shards of them."""
    lp_params = "lp_params"
    """The parameters that the model computes with, as they rest between steps."""
    lp_grads = "lp_grads"
    """Gradients of a window that is not complete yet."""
    contiguous_grad_buffer = "contiguous_grad_buffer"
    """Buffers of the reduction: not held between steps, so there is nothing to move."""


class OffloadDeviceEnum(StrEnum):
    """Where states can go; the names are DeepSpeed's."""

    none = "none"
    cpu = "cpu"
    nvme = "nvme"


State = OffloadStateTypeEnum
Tensors = Mapping[State, Iterable[Tensor]]


class OffloadedStates:
    """The storages that have left the device ``origin``, and which states have been asked to."""

    def __init__(self, origin: torch.device) -> None:
        self._origin = origin
        self.states: set[State] = set()
        self._away: list[tuple[torch.UntypedStorage, Tensor]] = []
        self._buffers: dict[int, list[Tensor]] = {}
        """By bytes: pinned host memory of earlier times. To pin takes longer than to copy."""

    def offload(self, tensors: Tensors, include: Iterable[State], *, pin: bool) -> int:
        """Take the storages of these states to the host; return the bytes freed on the device.

        A storage that serves two kinds of states (at stage 3 shards are master and parameter)
        leaves when both have been asked to.
        """
        self.states.update(include)
        leaving = self._leaving(tensors)
        copies = [(storage, self._copied(storage, pin)) for storage in leaving]
        self._synchronize()
        for storage, _ in copies:
            storage.resize_(0)
        self._away += copies
        return sum(copy.numel() for _, copy in copies)

    def restore(self) -> None:
        """Bring everything back to where it was."""
        for storage, copy in self._away:
            storage.resize_(copy.numel())
            _bytes_of(storage).copy_(copy, non_blocking=True)
        self._synchronize()
        for _, copy in self._away:
            if copy.is_pinned():
                self._buffers.setdefault(copy.numel(), []).append(copy)
        self._away.clear()
        self.states.clear()

    def _leaving(self, tensors: Tensors) -> list[torch.UntypedStorage]:
        """The storages all of whose states are to leave, each once."""
        found: dict[int, torch.UntypedStorage] = {}
        kinds: dict[int, set[State]] = {}
        for kind, members in tensors.items():
            for tensor in members:
                storage = local_part(tensor).untyped_storage()
                if storage.device.type == self._origin.type and storage.nbytes():
                    found[storage_key(storage)] = storage
                    kinds.setdefault(storage_key(storage), set()).add(kind)
        return [
            storage
            for key, storage in found.items()
            if kinds[key] <= self.states and storage.resizable()
        ]

    def _copied(self, storage: torch.UntypedStorage, pin: bool) -> Tensor:
        size = storage.nbytes()
        kept = self._buffers.get(size)
        if kept:
            copy = kept.pop()
        else:
            pin = pin and self._origin.type == "cuda"
            copy = torch.empty(size, dtype=torch.uint8, pin_memory=pin)
        return copy.copy_(_bytes_of(storage), non_blocking=True)

    def _synchronize(self) -> None:
        if self._origin.type == "cuda":
            torch.cuda.synchronize(self._origin)


def _bytes_of(storage: torch.UntypedStorage) -> Tensor:
    """The whole storage as a tensor. Its version counter is its own: no view is marked changed."""
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
