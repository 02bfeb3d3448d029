"""Reduced gradients that leave while backward runs, and their sums over a window, in fp32.

[Note: the way of a gradient]
``fully_shard`` calls the hooks of a shard when its gradient is reduced, on the stream of the
reduction. There the gradient is copied to the host, piece by piece, and let go: the next unit's
may have its memory, for that is used on the same stream. A thread waits for each piece and adds
it to the sum while backward goes on (``staging.py``). Where shards rest on the host themselves
``fully_shard`` has copied the gradient already, without waiting only if no hook is there to see
it: these are taken in when backward is over.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from dsengine.parameters.shards import is_indivisible
from dsengine.tiers import memory
from dsengine.tiers.staging import Staging
from dsengine.torch_private import local_part

ROUNDED_AT_ONCE = 2**20
"""Elements: few, so that their copy stays in the processor's cache."""


class OffloadedGradients(Mapping[str, Tensor]):
    """By name, this rank's parts of the gradients of a window, where ``parts`` of masters are.

    ``rounding``: the dtype to whose precision a sum is kept. ``copied``: shards rest on the host,
    and so do their gradients when backward is over.
    """

    def __init__(
        self,
        masters: Mapping[str, nn.Parameter],
        parts: Mapping[str, nn.Parameter],
        *,
        rounding: torch.dtype,
        copied: bool,
        staging: Staging,
        pin: bool,
    ) -> None:
        self._masters = masters
        self._parts = parts
        self._rounding = rounding
        self._pin = pin
        self._staging = staging
        self._sums: dict[str, Tensor] = {}
        """The memory is kept for the next window."""
        self._arrived: dict[str, None] = {}
        # What nothing divides is nobody's shard: its gradient is reduced when backward is over.
        self._late = [name for name in parts if copied or is_indivisible(masters[name])]
        self._hooks = [self._hooked(name) for name in parts if name not in self._late]

    def take_in(self) -> None:
        """Take what was reduced and has called no hook; backward is over."""
        for name in self._late:
            self._receive(name)

    def clear(self) -> None:
        """Forget the sums."""
        self._staging.settle()
        self._arrived.clear()

    def close(self) -> None:
        """Receive no more."""
        for hook in self._hooks:
            hook.remove()
        self._staging.settle()

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._arrived:
            raise KeyError(name)
        self._staging.settle()
        return self._sums[name]

    def __contains__(self, name: object) -> bool:
        return name in self._arrived

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrived)

    def __len__(self) -> int:
        return len(self._arrived)

    def _hooked(self, name: str) -> Any:
        """A hook on the master; one that is frozen now may be trained later."""
        master = self._masters[name]
        is_trained = master.requires_grad
        hook = master.requires_grad_(True).register_post_accumulate_grad_hook(
            lambda _: self._receive(name)
        )
        master.requires_grad_(is_trained)
        return hook

    @torch.no_grad()
    def _receive(self, name: str) -> None:
        master = self._masters[name]
        if master.grad is None:
            return
        gradient, master.grad = local_part(master.grad), None
        total, is_first = self._sum_for(name, gradient), name not in self._arrived
        self._arrived[name] = None
        if memory.in_same_memory(gradient, total):
            self._add(total, gradient, is_first)
        else:
            self._staging.send(
                gradient, total, lambda into, piece: self._add(into, piece, is_first)
            )

    def _sum_for(self, name: str, gradient: Tensor) -> Tensor:
        if name not in self._sums:
            part = self._parts[name]
            self._sums[name] = memory.empty_on_device_of(part, gradient.shape, pin=self._pin)
        return self._sums[name]

    def _add(self, total: Tensor, gradient: Tensor, is_first: bool) -> None:
        if is_first:
            total.copy_(gradient)
        else:
            total.add_(gradient)
        if self._rounding is not total.dtype:
            for piece in total.view(-1).split(ROUNDED_AT_ONCE):
                piece.copy_(piece.to(self._rounding))
