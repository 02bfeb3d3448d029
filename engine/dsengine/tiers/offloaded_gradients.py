"""Reduced gradients offloaded during backward, and their sums over a window.

[Note: how gradients are offloaded]
``fully_shard`` calls a shard's hooks when its gradient is reduced, on the reduction stream. There
the gradient is copied to the host in pieces and released; the next unit's gradient can reuse its
memory, because it is used on the same stream. Threads wait for each piece and add it to the sum
while backward continues (``staging.py``). If the shards themselves are on the host, ``fully_shard``
has already copied the gradient, without waiting only if there is no hook to read it: these are
accumulated after backward.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from dsengine.parameters.shards import is_indivisible
from dsengine.tiers import memory
from dsengine.tiers.accumulation import accumulate
from dsengine.tiers.staging import Staging
from dsengine.torch_private.tensors import local_part


@dataclass(eq=False)
class OffloadedGradients(Mapping[str, Tensor]):
    """This rank's gradient sums of a window by name, like the masters' ``parts``.

    ``rounding``: the dtype to whose precision sums are kept. ``copied``: shards are on the host,
    and so are their gradients after backward.
    """

    masters: Mapping[str, nn.Parameter]
    parts: Mapping[str, nn.Parameter]
    rounding: torch.dtype
    copied: bool
    staging: Staging
    pin: bool
    _sums: dict[str, Tensor] = field(init=False, default_factory=dict[str, Tensor])
    """The memory is reused for the next window."""
    _arrived: dict[str, None] = field(init=False, default_factory=dict[str, None])

    def __post_init__(self) -> None:
        for name, part in self.parts.items() if self.pin else ():
            # Page-locking takes seconds and waits for the device: not within a backward.
            if part.device.type == "cpu" and self.masters[name].requires_grad:
                self._sum_for(name, local_part(self.masters[name]))
        # Gradients of indivisible parameters are reduced after backward.
        self._late = [
            name for name in self.parts if self.copied or is_indivisible(self.masters[name])
        ]
        self._hooks = [self._register_hook(name) for name in self.parts if name not in self._late]

    def accumulate_late(self) -> None:
        """Accumulate the gradients without hooks, after backward."""
        for name in self._late:
            self._receive(name)

    def takes(self, name: str) -> bool:
        """Whether the gradient of this parameter is offloaded."""
        return name in self.parts

    def add_zeros(self, name: str) -> None:
        """Add a gradient of zeros for a parameter that had none in this window."""
        self.staging.wait()
        self._sum_for(name, local_part(self.masters[name])).zero_()
        self._arrived[name] = None

    def clear(self) -> None:
        """Drop the sums."""
        self.staging.wait()
        self._arrived.clear()

    def close(self) -> None:
        """Remove the hooks."""
        for hook in self._hooks:
            hook.remove()
        self.staging.wait()

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._arrived:
            raise KeyError(name)
        self.staging.wait()
        return self._sums[name]

    def __contains__(self, name: object) -> bool:
        return name in self._arrived

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrived)

    def __len__(self) -> int:
        return len(self._arrived)

    def _register_hook(self, name: str) -> Any:
        """Register a hook on the master, also on a frozen one, which may be trained later."""
        master = self.masters[name]
        is_trained = master.requires_grad
        hook = master.requires_grad_(True).register_post_accumulate_grad_hook(
            lambda _: self._receive(name)
        )
        master.requires_grad_(is_trained)
        return hook

    @torch.no_grad()
    def _receive(self, name: str) -> None:
        master = self.masters[name]
        if master.grad is None:
            return
        gradient, master.grad = local_part(master.grad), None
        total, is_first = self._sum_for(name, gradient), name not in self._arrived
        self._arrived[name] = None
        if memory.in_same_memory(gradient, total):
            self._add(total, gradient, is_first)
        else:
            self.staging.to_host(
                gradient, total, lambda into, piece: self._add(into, piece, is_first)
            )

    def _sum_for(self, name: str, gradient: Tensor) -> Tensor:
        """Return the memory of a parameter's sum, shaped like its ``gradient``."""
        if name not in self._sums:
            part = self.parts[name]
            self._sums[name] = memory.empty_on_device_of(
                part, gradient.shape, pin=self.pin, dtype=part.dtype
            )
        return self._sums[name]

    def _add(self, total: Tensor, gradient: Tensor, is_first: bool) -> None:
        accumulate(total, gradient, self.rounding, is_first=is_first)
