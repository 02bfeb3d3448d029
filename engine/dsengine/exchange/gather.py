"""All-gather by direct exchange."""

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from dsengine.exchange.buffers import Buffers
from dsengine.exchange.tags import GATHER


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


def start_gather(output: Tensor, own: Tensor, group: dist.ProcessGroup) -> Gather:
    """Fill ``output`` (ranks * n,) with the ranks' ``own`` (n,), which may rest in it."""
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
