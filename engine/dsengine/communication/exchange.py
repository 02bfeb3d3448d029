"""Gathering and reducing units over gloo by direct exchange between all pairs of ranks.

gloo has no reduce-scatter: torch emulates it with an all-reduce, which sends twice the bytes and
copies the unit twice. Its all-gather goes through an internal buffer. A direct exchange sends
(n-1)/n of a unit each way, the minimum, and reads and writes the final buffers.

[Note: buffer ownership]
``fully_shard`` requests memory for a collective (``allocate``), fills it, calls the collective and
drops it, without a callback when it is done. Each side therefore infers it.
Gather: the output lent by ``allocate`` for unit k belongs to the caller until it has waited for the
gather and copied the parameters out, which is over when ``allocate`` is called for unit k+1.
Reduce: ``allocate`` is called twice, first for the send buffer (lent from the pool), then for the
result (newly allocated: it becomes ``.grad``). The send buffer must not change until ``finish``,
which returns it to the pool. One reduction is in flight at a time: starting that of unit k-1
finishes that of unit k, and ``after_backward`` of the sharding finishes the last one. All of it
runs on one thread per rank, in the same order on every rank: shards are matched by rank and tag.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

GATHER, REDUCE = 0x2E20, 0x2E21
"""Tags that separate the shards from messages that a script sends between the same ranks."""


def can_exchange(group: dist.ProcessGroup | None, device: torch.device) -> bool:
    """Whether ``group`` communicates tensors of ``device`` with gloo."""
    return group is not None and device.type == "cpu" and dist.get_backend(group) == "gloo"


class BufferPool:
    """Flat CPU tensors for reuse; unused ones are kept until ``clear``.

    On the CPU a fresh allocation of several MiB causes page faults that cost more than the copy
    into it. (CUDA's caching allocator has no such cost.)
    """

    def __init__(self) -> None:
        self._free: list[Tensor] = []

    def take(self, elements: int, dtype: torch.dtype) -> Tensor:
        """Return an uninitialized tensor of shape (elements,)."""
        # No local name refers to a free buffer, or it would outlive the list below.
        fits = (each.dtype is dtype and each.numel() >= elements for each in self._free)
        index = next((index for index, fit in enumerate(fits) if fit), None)
        if index is not None:
            return self._free.pop(index)[:elements]
        # Drop those that are too small: the new one serves both sizes.
        self._free = [buffer for buffer in self._free if buffer.dtype is not dtype]
        return torch.empty(elements, dtype=dtype)

    def give_back(self, buffer: Tensor) -> None:
        """Return a buffer from ``take`` to the pool; its values may change from now on."""
        elements = buffer.untyped_storage().nbytes() // buffer.element_size()
        self._free.append(buffer.as_strided((elements,), (1,), 0))

    def clear(self) -> None:
        self._free.clear()


class Gather(dist.Work):
    """A gather in flight. ``is_done`` is set once it has been waited for."""

    def __init__(self, output: Tensor, works: list[Any]) -> None:
        super().__init__()
        self.output = output
        self.is_done = False
        self._works = works

    def wait(self, timeout: Any = None) -> bool:
        del timeout
        for work in self._works:
            work.wait()
        self.is_done = True
        return True


def start_gather(
    output: Tensor, own: Tensor, group: dist.ProcessGroup, async_op: bool = True
) -> Gather:
    """Fill ``output`` (ranks * n,) with each rank's ``own`` (n,), which may be a view of it."""
    del async_op  # never blocks; the argument matches torch's all-gather
    rank, shards = group.rank(), list(output.view(group.size(), -1))
    works: list[Any] = []
    for peer, shard in enumerate(shards):
        if peer != rank:
            works.append(dist.isend(own, group=group, group_dst=peer, tag=GATHER))
            works.append(dist.irecv(shard, group=group, group_src=peer, tag=GATHER))
    if shards[rank].data_ptr() != own.data_ptr():
        shards[rank].copy_(own)
    return Gather(output, works)


class UnitAllGather:
    """The all-gather that ``fully_shard`` calls, with reused buffers.

    ``fully_shard`` copies the parameters out right after it has waited for the gather: when it
    requests the next buffer, the buffers of all completed gathers can be reused.
    """

    def __init__(self) -> None:
        self._buffers = BufferPool()
        self._in_flight: list[Gather] = []

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        del device
        self._reclaim()
        return self._buffers.take(math.prod(size), dtype)

    def release(self) -> None:
        """Free the buffers that are not in use."""
        self._reclaim()
        self._buffers.clear()

    def _reclaim(self) -> None:
        for gather in [gather for gather in self._in_flight if gather.is_done]:
            self._in_flight.remove(gather)
            self._buffers.give_back(gather.output)

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        async_op: bool = False,
    ) -> dist.Work | None:
        gather = start_gather(output_tensor, input_tensor, group)
        if async_op:
            self._in_flight.append(gather)
            return gather
        # The buffer is not reused: there is no signal that the parameters have been copied out.
        gather.wait()
        return None


def _sum_shards(output: Tensor, shards: list[Tensor], works: list[Any], factor: float) -> None:
    """Wait for the shards and write their sum, each scaled by ``factor``, to ``output``.

    Summed in rank order, so that the result does not depend on the owner; scaled before the
    addition, so that a mean in fp16 overflows only if the result does.
    """
    for work in works:
        work.wait()
    first, *others = shards
    torch.mul(first, factor, out=output)
    for shard in others:
        output.add_(shard, alpha=factor)


class Reductions:
    """Reductions in flight: at most one, so that only one unit's shards are in memory."""

    def __init__(self) -> None:
        self.buffers = BufferPool()
        self._in_flight: Callable[[], None] | None = None
        self._borrowed: list[Tensor] = []

    def start(self, output: Tensor, full: Tensor, group: dist.ProcessGroup, factor: float) -> None:
        """Send each rank its shard of ``full``; ``output`` receives the sum times ``factor``.

        ``full``: (ranks * n,), which must not change until ``finish``; ``output``: (n,).
        """
        self.finish()
        shards = list(full.view(group.size(), -1))
        works: list[Any] = []
        for peer in range(group.size()):
            if peer != group.rank():
                works.append(dist.isend(shards[peer], group=group, group_dst=peer, tag=REDUCE))
                shards[peer] = self.buffers.take(output.numel(), full.dtype)
                works.append(dist.irecv(shards[peer], group=group, group_src=peer, tag=REDUCE))
                self._borrowed.append(shards[peer])
        self._in_flight = partial(_sum_shards, output, shards, works, factor)

    def return_after(self, buffer: Tensor) -> None:
        """Return ``buffer`` to the pool when the reduction in flight is finished."""
        self._borrowed.append(buffer)

    def finish(self) -> None:
        """Complete the reduction in flight, if any."""
        reduction, self._in_flight = self._in_flight, None
        if reduction is not None:
            reduction()
            while self._borrowed:
                self.buffers.give_back(self._borrowed.pop())


@dataclass(eq=False)
class UnitReduceScatter:
    """The reduce-scatter that ``fully_shard`` calls.

    If ``may_wait()``, the result is complete only after ``reductions.finish()``, so that backward
    overlaps with the communication.
    """

    reductions: Reductions
    factor: float
    wire: torch.dtype
    may_wait: Callable[[], bool]
    _lent: Tensor | None = field(init=False, default=None)

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return the send buffer on the first call, a new tensor for the result on the second."""
        if self._lent is not None:
            return torch.empty(*size, dtype=dtype, device=device)
        self._lent = self.reductions.buffers.take(math.prod(size), dtype)
        return self._lent

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> dist.Work | None:
        del op, async_op
        sent = input_tensor.to(self.wire)
        self.reductions.start(output_tensor, sent, group, self.factor)
        if input_tensor is self._lent:
            self.reductions.return_after(input_tensor)
        self._lent = None
        if not self.may_wait():
            self.reductions.finish()
        return None
