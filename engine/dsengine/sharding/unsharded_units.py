"""Units that are whole between steps: bringing them up to date with what the optimizer updated.

[Note: shards inside whole parameters]
``fully_shard`` would free a unit and gather it anew. These stay where they are: each rank
writes its part into its place and the other ranks' parts arrive around it, without another
copy. An optimizer leaves frozen parameters as they are, so a step brings only the others.
Where the shards have the dtype and the device of the whole parameter, they *are* that part of
it, and rest nowhere else.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from dsconfig import tiles
from dsengine.torch_private import (
    ShardedParameter,
    foreach_copy_,
    preserve_versions,
    sharded_parameters_of,
)


@dataclass(frozen=True, slots=True)
class _Part:
    """One parameter: ``place`` is where this rank's ``shard`` belongs in the ``whole``, flat."""

    parameter: ShardedParameter
    shard: Tensor
    whole: Tensor
    place: Tensor

    @property
    def has_moved(self) -> bool:
        """Whether the module was moved or cast since."""
        return self.shard is not self.parameter.flat_shard

    @property
    def is_trained(self) -> bool:
        """Whether an optimizer may update it; scripts freeze the whole or the shard."""
        return any(leaf.requires_grad for leaf in self.parameter.leaves)

    @property
    def is_apart(self) -> bool:
        return self.shard.data_ptr() != self.place.data_ptr()


@dataclass(frozen=True, slots=True)
class _Writing:
    """Parts by how they are written: ``apart`` are copied into their place first, ``large`` are
    gathered one by one, ``small`` together, by dtype.
    """

    apart: Sequence[_Part] = ()
    large: Sequence[_Part] = ()
    small: Sequence[Sequence[_Part]] = ()

    @classmethod
    def of(cls, parts: Sequence[_Part]) -> "_Writing":
        small = defaultdict[torch.dtype, list[_Part]](list)
        for part in parts:
            if part.whole.nbytes < tiles.PACKED_BELOW:
                small[part.whole.dtype].append(part)
        return cls(
            apart=[each for each in parts if each.is_apart],
            large=[each for each in parts if each.whole.nbytes >= tiles.PACKED_BELOW],
            small=list(small.values()),
        )


class UnshardedUnits:
    """``units`` are gathered, and stay it; ``group`` shares their shards, None for one rank.

    ``all_gather(whole, own, group=..., async_op=True)`` begins a gather of flat tensors.
    """

    def __init__(
        self,
        units: Sequence[FSDPModule],
        group: dist.ProcessGroup | None,
        all_gather: Callable[..., Any],
    ) -> None:
        self._units = units
        self._group = group
        self._all_gather = all_gather
        self._rank = group.rank() if group is not None else 0
        self._ranks = group.size() if group is not None else 1
        self._parts: list[_Part] = []
        self._all = self._trained = _Writing()
        self._trains: list[bool] = []
        """By part, what was trained when ``_trained`` was put together."""

    @torch.no_grad()
    def settle(self, unit: FSDPModule) -> None:
        """Let the shards of a gathered unit live inside it where they can."""
        for part in map(self._part, sharded_parameters_of([unit])):
            if part.shard.dtype is part.whole.dtype and part.shard.device == part.whole.device:
                part.parameter.keep_unsharded()
                part.parameter.use_memory(part.place)
        self._parts = []  # to be surveyed anew

    @torch.no_grad()
    def refresh(self, *, frozen: bool) -> None:
        """Write the shards of all ranks into the whole parameters. Collective.

        ``frozen``: into those too that no optimizer updates. Shards that lie inside do not count
        as written to: nothing of theirs changes.
        """
        if not self._parts or any(part.has_moved for part in self._parts):
            self._survey()
        self._note_trained()
        with preserve_versions([part.whole for part in self._parts]):
            self._write(self._all if frozen else self._trained)

    def _write(self, writing: "_Writing") -> None:
        if writing.apart:
            foreach_copy_([e.place for e in writing.apart], [e.shard for e in writing.apart])
        if self._group is None:
            return
        under_way = [self._start_gather(part.whole, part.place) for part in writing.large]
        for together in writing.small:
            self._gather_packed(together)
        for gather in under_way:
            gather.wait()

    def _survey(self) -> None:
        self._parts = [self._part(each) for each in sharded_parameters_of(self._units)]
        self._all = _Writing.of(self._parts)
        self._trains = []

    def _note_trained(self) -> None:
        """Look which parts are trained now: a script may freeze some, and go on with others."""
        trains = [part.is_trained for part in self._parts]
        if trains != self._trains:
            pairs = zip(self._parts, trains, strict=True)
            trained = [part for part, is_trained in pairs if is_trained]
            self._trains, self._trained = trains, _Writing.of(trained)

    def _part(self, parameter: ShardedParameter) -> _Part:
        whole = parameter.flat_whole
        place = whole.view(self._ranks, -1)[self._rank]
        return _Part(parameter, parameter.flat_shard, whole, place)

    def _gather_packed(self, together: Sequence[_Part]) -> None:
        """Gather small parameters in one flat buffer."""
        sizes = [part.place.numel() for part in together]
        flat = together[0].whole.new_empty(self._ranks, sum(sizes))
        own = flat[self._rank]
        torch.cat([part.place for part in together], out=own)
        self._start_gather(flat.view(-1), own).wait()
        wholes = [part.whole.view(self._ranks, -1) for part in together]
        torch.split_with_sizes_copy(flat, sizes, dim=1, out=wholes)

    def _start_gather(self, whole: Tensor, own: Tensor) -> Any:
        return self._all_gather(whole, own, group=self._group, async_op=True)
