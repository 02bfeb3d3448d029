"""Storage of ``engine.offload_states`` and ``reload_states``.

[Note: empty storages]
Storages are offloaded: their bytes are copied to host memory and they are emptied in place, as
``fully_shard`` does with gathered parameters. Every tensor on a storage (a parameter, its shard,
what the optimizer or reducer holds) stays the same object and is valid again after the bytes are
copied back. PyTorch refuses operations on tensors with an empty storage.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum

import torch
from torch import Tensor

from dsengine.communication.devices import wait_for_device
from dsengine.torch_private.tensors import local_part, storage_key


class OffloadStateTypeEnum(StrEnum):
    """Kinds of states, with DeepSpeed's names."""

    optim_states = "optim_states"
    """Optimizer states."""
    hp_params = "hp_params"
    """The fp32 masters, or this rank's shards of them."""
    lp_params = "lp_params"
    """The model's parameters, as stored between steps."""
    lp_grads = "lp_grads"
    """Gradients of an incomplete accumulation window."""
    contiguous_grad_buffer = "contiguous_grad_buffer"
    """Reduction buffers; not kept between steps, so nothing is offloaded."""


class OffloadDeviceEnum(StrEnum):
    """Targets for states, with DeepSpeed's names."""

    none = "none"
    cpu = "cpu"
    nvme = "nvme"


State = OffloadStateTypeEnum
Tensors = Mapping[State, Iterable[Tensor]]


class OffloadedStates:
    """The storages offloaded from the device ``origin``, and the states requested so far."""

    def __init__(self, origin: torch.device) -> None:
        self._origin = origin
        self.states: set[State] = set()
        self._offloaded: list[tuple[torch.UntypedStorage, Tensor]] = []
        self._buffers: dict[int, list[Tensor]] = {}
        """Pinned host buffers for reuse, by bytes: pinning takes longer than copying."""

    def offload(self, tensors: Tensors, include: Iterable[State], *, pin: bool) -> int:
        """Offload the storages of these states; return the bytes freed on the device.

        A storage used by two kinds of states (at stage 3 shards are master and parameter) is
        offloaded once both are requested.
        """
        self.states.update(include)
        selected = self._select(tensors)
        copies = [(storage, self._copied(storage, pin)) for storage in selected]
        wait_for_device(self._origin)
        for storage, _ in copies:
            storage.resize_(0)
        self._offloaded += copies
        return sum(copy.numel() for _, copy in copies)

    def restore(self) -> None:
        """Copy all storages back to the device."""
        for storage, copy in self._offloaded:
            storage.resize_(copy.numel())
            _bytes_of(storage).copy_(copy, non_blocking=True)
        wait_for_device(self._origin)
        for _, copy in self._offloaded:
            if copy.is_pinned():
                self._buffers.setdefault(copy.numel(), []).append(copy)
        self._offloaded.clear()
        self.states.clear()

    def _select(self, tensors: Tensors) -> list[torch.UntypedStorage]:
        """Return the storages all of whose states are requested, each once."""
        storages: dict[int, torch.UntypedStorage] = {}
        kinds: dict[int, set[State]] = {}
        for kind, members in tensors.items():
            for tensor in members:
                storage = local_part(tensor).untyped_storage()
                if storage.device.type == self._origin.type and storage.nbytes():
                    storages[storage_key(storage)] = storage
                    kinds.setdefault(storage_key(storage), set()).add(kind)
        return [
            storage
            for key, storage in storages.items()
            if kinds[key] <= self.states and storage.resizable()
        ]

    def _copied(self, storage: torch.UntypedStorage, pin: bool) -> Tensor:
        size = storage.nbytes()
        buffers = self._buffers.get(size)
        if buffers:
            copy = buffers.pop()
        else:
            pin = pin and self._origin.type == "cuda"
            copy = torch.empty(size, dtype=torch.uint8, pin_memory=pin)
        return copy.copy_(_bytes_of(storage), non_blocking=True)


def _bytes_of(storage: torch.UntypedStorage) -> Tensor:
    """Return the storage as a byte tensor with its own version counter."""
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
