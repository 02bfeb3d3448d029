"""Units that are whole between steps: bringing them up to date with what the optimizer updated.

[Note: shards inside whole parameters]
``fully_shard`` would free a unit and gather it anew. These stay where they are: each rank
writes its part into its place and the other ranks' parts arrive around it, without another
copy. Where the shards have the dtype and the device of the whole parameter, they *are* that
part of it, and rest nowhere else.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from dsengine.exchange import can_exchange, start_gather
from dsengine.foreach import foreach_copy_
from dsengine.sharding.internals import (
    forbid_freeing,
    place_shard,
    shard_of,
    sharded_entries,
    whole_of,
)

MEBI = 1024**2
_all_gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
"""Renamed in torch 2.13; the old name warns there."""


class UnitsAtRest:
    """``units`` are gathered, and stay it; ``group`` shares their shards, None for one rank."""

    def __init__(self, units: Sequence[FSDPModule], group: dist.ProcessGroup | None) -> None:
        self._units = units
        self._group = group
        self._rank = group.rank() if group is not None else 0
        self._ranks = group.size() if group is not None else 1

    @torch.no_grad()
    def settle(self) -> None:
        """Let the shards of gathered units live inside them where they can."""
        for entry in self._entries():
            place, shard = self._place(entry), shard_of(entry)
            if shard.dtype is place.dtype and shard.device == place.device:
                forbid_freeing(entry)
                place_shard(entry, place)

    @torch.no_grad()
    def refresh(self) -> None:
        """Write the shards of all ranks into the whole parameters. Collective."""
        entries = list(self._entries())
        apart = [each for each in entries if not _is_same(shard_of(each), self._place(each))]
        if apart:
            foreach_copy_([self._place(each) for each in apart], [shard_of(e) for e in apart])
        if self._group is None:
            return
        works, small = list[Any](), defaultdict[torch.dtype, list[Any]](list)
        for entry in entries:
            whole = whole_of(entry)
            if whole.nbytes < MEBI:
                small[whole.dtype].append(entry)
            else:
                works.append(self._start_gather(whole, self._place(entry)))
        for together in small.values():
            self._gather_packed(together)
        for work in works:
            work.wait()

    def _gather_packed(self, entries: Sequence[Any]) -> None:
        """Gather small parameters in one flat buffer."""
        sizes = [shard_of(each).numel() for each in entries]
        flat = whole_of(entries[0]).new_empty(self._ranks, sum(sizes))
        own = flat[self._rank]
        torch.cat([self._place(each) for each in entries], out=own)
        self._start_gather(flat.view(-1), own).wait()
        parts = [whole_of(each).view(self._ranks, -1) for each in entries]
        torch.split_with_sizes_copy(flat, sizes, dim=1, out=parts)

    def _start_gather(self, whole: Tensor, own: Tensor) -> Any:
        assert self._group is not None
        if can_exchange(self._group, whole.device):
            return start_gather(whole, own, self._group)
        return _all_gather(whole, own, group=self._group, async_op=True)

    def _entries(self) -> Iterable[Any]:
        return (each for unit in self._units for each in sharded_entries(unit))

    def _place(self, entry: Any) -> Tensor:
        """This rank's part of the whole parameter, flat and padded as the shard is."""
        return whole_of(entry).view(self._ranks, -1)[self._rank]


def _is_same(shard: Tensor, place: Tensor) -> bool:
    return shard.data_ptr() == place.data_ptr()
