"""Gathering and reducing units over gloo: every rank sends every other what that one needs.

gloo has no reduce-scatter, torch makes one of an all-reduce: twice the bytes, and the unit
copied twice more. Its all-gather takes a detour through a buffer of its own. A direct exchange
of the pieces moves (n-1)/n of a unit each way, the least there is, from and to where they rest.

[Note: whose buffer it is]
``fully_shard`` asks a collective for memory (``allocate``), fills it, calls the collective, and
drops it; nothing tells when. So each side keeps to what it can see. Gather: the output is lent by
``allocate`` of unit k and belongs to the caller until it has waited for the gather and copied the
parameters out, which is over when ``allocate`` of unit k+1 comes. Reduce: ``allocate`` is called
twice, first for what is sent (lent from the pool), then for the result (new: it becomes
``.grad``). What is sent must not change until ``finish``, so the pool gets it back there, not
before. One reduction is under way at a time: starting that of unit k-1 finishes that of unit k,
and ``after_backward`` of the sharding the last one. All of it runs on one thread per rank, in the
same order on every rank: pieces are matched by rank and tag alone.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

GATHER, REDUCE = 0x2E20, 0x2E21
"""Tags that keep the pieces apart from what a script sends between the same ranks."""


def can_exchange(group: dist.ProcessGroup | None, device: torch.device) -> bool:
    """Whether gloo carries the tensors of ``device`` in ``group``."""
    return group is not None and device.type == "cpu" and dist.get_backend(group) == "gloo"


class Buffers:
    """Takes and gives flat tensors on the CPU; holds what nobody uses until ``clear``.

    There a fresh allocation of some MiB is a run of page faults, which cost more than the copy
    that fills it. (CUDA's caching allocator has no such cost.)
    """

    def __init__(self) -> None:
        self._free: list[Tensor] = []

    def take(self, elements: int, dtype: torch.dtype) -> Tensor:
        """Return (elements,) of undefined values."""
        fits = (each.dtype is dtype and each.numel() >= elements for each in self._free)
        place = next((place for place, fit in enumerate(fits) if fit), None)
        if place is not None:
            return self._free.pop(place)[:elements]
        # What is too small now gives way to what is large enough for both.
        self._free = [each for each in self._free if each.dtype is not dtype]
        return torch.empty(elements, dtype=dtype)

    def give(self, buffer: Tensor) -> None:
        """Take back what ``take`` returned; its values may change from now on."""
        elements = buffer.untyped_storage().nbytes() // buffer.element_size()
        self._free.append(buffer.as_strided((elements,), (1,), 0))

    def clear(self) -> None:
        self._free.clear()


class Gather(dist.Work):
    """A gather under way. ``is_done`` once it has been waited for."""

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
    """Fill ``output`` (ranks * n,) with the ranks' ``own`` (n,), which may rest in it."""
    del async_op  # it never waits; the argument is that of torch's all-gather
    rank, pieces = group.rank(), list(output.view(group.size(), -1))
    works: list[Any] = []
    for each, piece in enumerate(pieces):
        if each != rank:
            works.append(dist.isend(own, group=group, group_dst=each, tag=GATHER))
            works.append(dist.irecv(piece, group=group, group_src=each, tag=GATHER))
    if pieces[rank].data_ptr() != own.data_ptr():
        pieces[rank].copy_(own)
    return Gather(output, works)


class UnitAllGather:
    """What ``fully_shard`` calls to gather a unit, with buffers that serve again.

    It copies the parameters out of a buffer as soon as it has waited for the gather: when it
    asks for the next buffer, every gather that is done can give its own.
    """

    def __init__(self) -> None:
        self._buffers = Buffers()
        self._under_way: list[Gather] = []

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        del device
        self._reclaim()
        return self._buffers.take(math.prod(size), dtype)

    def release(self) -> None:
        """Free the buffers that are not in use."""
        self._reclaim()
        self._buffers.clear()

    def _reclaim(self) -> None:
        for gather in [each for each in self._under_way if each.is_done]:
            self._under_way.remove(gather)
            self._buffers.give(gather.output)

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        async_op: bool = False,
    ) -> dist.Work | None:
        gather = start_gather(output_tensor, input_tensor, group)
        if async_op:
            self._under_way.append(gather)
            return gather
        # Nothing tells when the parameters are copied out of it.
        gather.wait()
        return None


def _add_up(output: Tensor, pieces: list[Tensor], works: list[Any], factor: float) -> None:
    """Wait for the pieces and leave their sum, each times ``factor``, in ``output``.

    In the order of ranks, so that the sum does not depend on who owns it; each scaled
    before it is added, so that a mean in fp16 overflows only where it has to.
    """
    for work in works:
        work.wait()
    first, *others = pieces
    torch.mul(first, factor, out=output)
    for piece in others:
        output.add_(piece, alpha=factor)


class Reductions:
    """Reductions under way: one at a time, so that the pieces of one unit are held."""

    def __init__(self) -> None:
        self.buffers = Buffers()
        self._under_way: Callable[[], None] | None = None
        self._borrowed: list[Tensor] = []

    def start(self, output: Tensor, whole: Tensor, group: dist.ProcessGroup, factor: float) -> None:
        """Send the pieces of ``whole`` to their ranks; the sum times ``factor`` is for ``output``.

        ``whole``: (ranks * n,), which must stay as it is until ``finish``; ``output``: (n,).
        """
        self.finish()
        pieces = list(whole.view(group.size(), -1))
        works: list[Any] = []
        for each in range(group.size()):
            if each != group.rank():
                works.append(dist.isend(pieces[each], group=group, group_dst=each, tag=REDUCE))
                pieces[each] = self.buffers.take(output.numel(), whole.dtype)
                works.append(dist.irecv(pieces[each], group=group, group_src=each, tag=REDUCE))
                self._borrowed.append(pieces[each])
        self._under_way = partial(_add_up, output, pieces, works, factor)

    def return_after(self, buffer: Tensor) -> None:
        """Give ``buffer`` back when what is under way is finished."""
        self._borrowed.append(buffer)

    def finish(self) -> None:
        """Complete what is under way. Without effect where nothing is."""
        reduction, self._under_way = self._under_way, None
        if reduction is not None:
            reduction()
            while self._borrowed:
                self.buffers.give(self._borrowed.pop())


class UnitReduceScatter:
    """What ``fully_shard`` calls to reduce the gradients of a unit.

    Where ``may_wait()`` allows it the result is complete only after ``reductions.finish()``, so
    that backward goes on meanwhile.
    """

    def __init__(
        self,
        reductions: Reductions,
        factor: float,
        wire: torch.dtype,
        may_wait: Callable[[], bool],
    ) -> None:
        self._reductions = reductions
        self._factor = factor
        self._wire = wire
        self._may_wait = may_wait
        self._lent: Tensor | None = None

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Lend a buffer to reduce from, asked for first; what is reduced to is there to stay."""
        if self._lent is not None:
            return torch.empty(*size, dtype=dtype, device=device)
        self._lent = self._reductions.buffers.take(math.prod(size), dtype)
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
        sent = input_tensor.to(self._wire)
        self._reductions.start(output_tensor, sent, group, self._factor)
        if input_tensor is self._lent:
            self._reductions.return_after(input_tensor)
        self._lent = None
        if not self._may_wait():
            self._reductions.finish()
        return None
