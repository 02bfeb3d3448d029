"""Units that stay unsharded between steps, and their refresh after an optimizer step.

[Note: shards inside full parameters]
``fully_shard`` would free a unit and gather it again. These units keep their memory: each rank
writes its shard in place and the other ranks' shards are gathered around it, without another copy.
Optimizers do not change frozen parameters, so a step refreshes only the others. If shards have the
dtype and device of the full parameter, they alias their slice of it and have no memory of their
own.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from dsconfig import tiles
from dsengine.communication.devices import can_coalesce
from dsengine.communication.exchange import start_gather
from dsengine.parameters.shards import chunk_of
from dsengine.torch_private.groups import all_gather_flat, start_gathers
from dsengine.torch_private.tensors import foreach_copy_, local_part, preserve_versions
from dsengine.torch_private.units import (
    ShardedParameter,
    remove_state_dict_hooks,
    sharded_parameters_of,
)


@dataclass(frozen=True, slots=True)
class _Entry:
    """One parameter; ``own`` is this rank's slice of the flat ``full`` parameter.

    ``group`` shares its shards, None for one rank.
    """

    parameter: ShardedParameter
    group: dist.ProcessGroup | None
    leaves: Sequence[Tensor]
    shard: Tensor
    full: Tensor
    own: Tensor

    @property
    def is_stale(self) -> bool:
        """Whether the module has been moved or cast since."""
        return self.shard is not self.parameter.flat_shard

    @property
    def is_trained(self) -> bool:
        """Whether an optimizer may update it; scripts freeze the full parameter or the shard."""
        return any(leaf.requires_grad for leaf in self.leaves)

    @property
    def is_separate(self) -> bool:
        """Whether the shard has its own memory."""
        return self.shard.data_ptr() != self.own.data_ptr()


@dataclass(frozen=True, slots=True)
class _Batch:
    """Entries by how they are refreshed.

    ``separate`` shards are copied into place first, ``large`` parameters are gathered in place,
    ``small`` ones packed by group and dtype. Those of one rank are not gathered.
    """

    separate: Sequence[_Entry] = ()
    large: Sequence[_Entry] = ()
    small: Sequence[Sequence[_Entry]] = ()

    @classmethod
    def of(cls, entries: Sequence[_Entry]) -> "_Batch":
        small = defaultdict[tuple[dist.ProcessGroup, torch.dtype], list[_Entry]](list)
        large: list[_Entry] = []
        for entry in entries:
            if entry.group is not None and entry.full.nbytes < tiles.PACKED_BELOW:
                small[entry.group, entry.full.dtype].append(entry)
            elif entry.group is not None:
                large.append(entry)
        return cls(
            separate=[entry for entry in entries if entry.is_separate],
            large=large,
            small=list(small.values()),
        )


def _write_through(parameter: ShardedParameter) -> None:
    """Copy what ``load_state_dict`` loads into a full parameter to its trained shard."""

    @torch.no_grad()
    def refresh(*_: object) -> None:
        own = chunk_of(local_part(parameter.unsharded), parameter.rank, parameter.ranks)
        local_part(parameter.shard).copy_(own)

    parameter.owner.register_load_state_dict_post_hook(refresh)


@dataclass(eq=False)
class UnshardedUnits:
    """Keeps ``units`` gathered; ``group_of`` returns the ranks that share a parameter's shards.

    ``exchanges``: gather over gloo by direct exchange.
    """

    units: Sequence[FSDPModule]
    group_of: Callable[[ShardedParameter], dist.ProcessGroup | None]
    exchanges: bool
    _entries: list[_Entry] = field(init=False, default_factory=list[_Entry])
    _all: _Batch = field(init=False, default=_Batch())
    _trained: _Batch = field(init=False, default=_Batch())
    _trains: list[bool] = field(init=False, default_factory=list[bool])
    """By entry, whether it was trained when ``_trained`` was built."""

    def use_full_state_dicts(self, unit: FSDPModule) -> None:
        """Save and load the full parameters of a gathered unit with state dicts.

        A state dict of shards would free them, and wait for all ranks to gather them again.
        """
        remove_state_dict_hooks(unit)
        for parameter in sharded_parameters_of([unit]):
            _write_through(parameter)

    @torch.no_grad()
    def alias_full(self, unit: FSDPModule) -> None:
        """Make the shards of a gathered unit alias its full parameters where possible."""
        for entry in map(self._entry, sharded_parameters_of([unit])):
            if entry.shard.dtype is entry.full.dtype and entry.shard.device == entry.full.device:
                entry.parameter.keep_unsharded()
                entry.parameter.use_memory(entry.own)
        self._entries = []  # rebuilt by the next refresh

    @torch.no_grad()
    def refresh(self, *, frozen: bool) -> None:
        """Write the shards of all ranks into the full parameters. Collective.

        ``frozen``: also into those that no optimizer updates. Writes to aliased shards do not
        change their version counters, because their values do not change.
        """
        if not self._entries or any(entry.is_stale for entry in self._entries):
            self._rebuild()
        self._update_trained()
        with preserve_versions([entry.full for entry in self._entries]):
            self._refresh(self._all if frozen else self._trained)

    def _refresh(self, batch: _Batch) -> None:
        if batch.separate:
            foreach_copy_([e.own for e in batch.separate], [e.shard for e in batch.separate])
        packed = [self._pack(entries) for entries in batch.small]
        pairs = defaultdict[Any, list[tuple[Tensor, Tensor]]](list)
        for entry in batch.large:
            pairs[entry.group].append((entry.full, entry.own))
        for flat, (first, *_) in zip(packed, batch.small, strict=True):
            pairs[first.group].append((flat.view(-1), flat[first.parameter.rank]))
        gathers = [self._start_gathers(of_group, group) for group, of_group in pairs.items()]
        for gather in chain.from_iterable(gathers):
            gather.wait()
        for flat, entries in zip(packed, batch.small, strict=True):
            self._unpack(flat, entries)

    def _rebuild(self) -> None:
        self._entries = [self._entry(record) for record in sharded_parameters_of(self.units)]
        self._all = _Batch.of(self._entries)
        self._trains = []

    def _update_trained(self) -> None:
        """Update which entries are trained; a script may freeze some at any time."""
        trains = [entry.is_trained for entry in self._entries]
        if trains != self._trains:
            pairs = zip(self._entries, trains, strict=True)
            trained = [entry for entry, is_trained in pairs if is_trained]
            self._trains, self._trained = trains, _Batch.of(trained)

    def _entry(self, parameter: ShardedParameter) -> _Entry:
        full = parameter.flat_unsharded
        own, group = full.view(parameter.ranks, -1)[parameter.rank], self.group_of(parameter)
        return _Entry(parameter, group, parameter.leaves, parameter.flat_shard, full, own)

    def _pack(self, entries: Sequence[_Entry]) -> Tensor:
        """Return a flat buffer (ranks, n) that has this rank's shards of small parameters."""
        first = entries[0].parameter
        flat = entries[0].full.new_empty(first.ranks, sum(entry.own.numel() for entry in entries))
        torch.cat([entry.own for entry in entries], out=flat[first.rank])
        return flat

    def _unpack(self, flat: Tensor, entries: Sequence[_Entry]) -> None:
        """Copy the gathered shards to the full parameters."""
        sizes = [entry.own.numel() for entry in entries]
        targets = [entry.full.view(entry.parameter.ranks, -1) for entry in entries]
        torch.split_with_sizes_copy(flat, sizes, dim=1, out=targets)

    def _start_gathers(
        self, pairs: Sequence[tuple[Tensor, Tensor]], group: dist.ProcessGroup
    ) -> Sequence[Any]:
        """Start gathering pairs of a flat tensor and this rank's slice of it.

        Over NCCL in one launch: each launch costs host time, and has a latency on the device.
        """
        if self.exchanges:
            return [start_gather(full, own, group) for full, own in pairs]
        if can_coalesce(group):
            return [start_gathers(pairs, group)]
        return [all_gather_flat(full, own, group=group, async_op=True) for full, own in pairs]
