"""Reduce-scatter by direct exchange."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from dsengine.exchange.buffers import Buffers
from dsengine.exchange.tags import REDUCE


@dataclass(slots=True)
class Reduction:
    """One reduction under way; ``finish`` leaves its result in ``output``."""

    output: Tensor
    pieces: list[Tensor]
    works: list[Any]
    factor: float

    def finish(self) -> None:
        """Wait for the pieces and add them up, each times ``factor``.

        In the order of ranks, so that the sum does not depend on who owns it; each scaled
        before it is added, so that a mean in fp16 overflows only where it has to.
        """
        for work in self.works:
            work.wait()
        first, *others = self.pieces
        torch.mul(first, self.factor, out=self.output)
        for piece in others:
            self.output.add_(piece, alpha=self.factor)


class Reductions:
    """Reductions under way: one at a time, so that the pieces of one unit are held."""

    def __init__(self) -> None:
        self.buffers = Buffers()
        self._under_way: Reduction | None = None
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
        self._under_way = Reduction(output, pieces, works, factor)

    def return_after(self, buffer: Tensor) -> None:
        """Give ``buffer`` back when what is under way is finished."""
        self._borrowed.append(buffer)

    def finish(self) -> None:
        """Complete what is under way. Without effect where nothing is."""
        reduction, self._under_way = self._under_way, None
        if reduction is not None:
            reduction.finish()
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
