"""Which operations use which bytes, and in which order.

Two uses of the same bytes race if at least one writes and neither is known to be finished before
the other. Freed device memory is given to the next allocation on the stream that allocated it, as
the caching allocator does: it races if another stream may still use it then.
"""

import weakref
from collections import defaultdict
from dataclasses import dataclass, field

import torch
from torch import Tensor

from dsengine.torch_private.tensors import storage_key
from streams.clocks import Schedule, Timeline


@dataclass(frozen=True, slots=True)
class Use:
    """Bytes ``start`` to ``stop`` used by an operation; ``place``: its name and source line."""

    start: int
    stop: int
    timeline: Timeline
    number: int
    place: str

    def __str__(self) -> str:
        return f"{self.timeline}: {self.place}"


@dataclass(frozen=True, slots=True, order=True)
class Race:
    kind: str
    earlier: str
    later: str

    def __str__(self) -> str:
        return f"{self.kind}\n    {self.earlier}\n    {self.later}"


@dataclass(slots=True, eq=False)
class Block:
    """A storage. ``owner``: the stream that allocated it; None for host memory."""

    storage: "weakref.ref[torch.UntypedStorage]"
    owner: Timeline | None
    is_pinned: bool = False
    reads: list[Use] = field(default_factory=list)
    writes: list[Use] = field(default_factory=list)

    @property
    def is_on_host(self) -> bool:
        return self.owner is None


class Memory:
    """All storages that operations have used, and the races found so far."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._blocks: dict[int, Block] = {}
        self._freed: dict[Timeline, list[Use]] = defaultdict(list)
        """By stream, uses of its freed memory by others."""
        self.races: dict[Race, None] = {}

    def block_of(self, tensor: Tensor, owner: Timeline | None, place: str = "") -> Block:
        """Return the block of a tensor; a new one belongs to ``owner``."""
        storage = tensor.untyped_storage()
        key = storage_key(storage)
        block = self._blocks.get(key)
        if block is None or block.storage() is not storage:
            block = Block(weakref.ref(storage, lambda gone: self._forget(key, gone)), owner)
            self._blocks[key] = block
            self._allocate(block, place)
        return block

    def is_on_host(self, tensor: Tensor) -> bool:
        storage = tensor.untyped_storage()
        block = self._blocks.get(storage_key(storage))
        return block is not None and block.storage() is storage and block.is_on_host

    def put_on_host(self, tensor: Tensor, *, pin: bool = False) -> None:
        """Mark a tensor as one in host memory; uses before this do not count."""
        block = self.block_of(tensor, None)
        block.owner, block.is_pinned = None, pin
        block.reads, block.writes = [], []

    def use(
        self, tensor: Tensor, timeline: Timeline, number: int, place: str, *, write: bool
    ) -> None:
        """Record that an operation reads or writes the bytes that ``tensor`` spans."""
        if not tensor.numel():
            return
        size = tensor.element_size()
        last = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
        start = int(tensor.storage_offset()) * size
        use = Use(start, int(start + (last + 1) * size), timeline, number, place)
        block = self.block_of(tensor, self._schedule.stream)
        self._compare(use, block.writes, "written before", write)
        if write:
            self._compare(use, block.reads, "read before", write)
            block.writes = [*self._kept(block.writes, use), use]
            block.reads = self._kept(block.reads, use)
        else:
            block.reads = [u for u in block.reads if not (u.timeline is timeline and _in(u, use))]
            block.reads.append(use)

    def resized(self, storage: torch.UntypedStorage, before: int) -> None:
        """Record that a storage was freed or allocated in place."""
        block = self._blocks.get(storage_key(storage))
        if block is None or block.storage() is not storage or block.is_on_host:
            return
        if before:
            self._free(block)
        block.reads, block.writes = [], []
        if storage.nbytes():
            block.owner = self._schedule.stream
            self._allocate(block, "an allocation in place")

    def _compare(self, use: Use, others: list[Use], what: str, write: bool) -> None:
        for other in others:
            if (
                other.start < use.stop
                and use.start < other.stop
                and not use.timeline.knows(other.timeline, other.number)
            ):
                kind = f"{what} a {'write' if write else 'read'} without an order"
                self.races.setdefault(Race(kind, str(other), str(use)))

    @staticmethod
    def _kept(uses: list[Use], write: Use) -> list[Use]:
        """Return the uses that a write does not replace."""
        return [use for use in uses if not _in(use, write)]

    def _allocate(self, block: Block, place: str) -> None:
        stream = block.owner
        if stream is None or not self._freed[stream]:
            return
        stream.join(self._schedule.host.clock)
        for use in self._freed.pop(stream):
            if not stream.knows(use.timeline, use.number):
                later = f"{stream}: {place or 'a new tensor'}"
                self.races.setdefault(Race("in use when its memory was reused", str(use), later))

    def _free(self, block: Block) -> None:
        if block.owner is not None:
            self._freed[block.owner] += [
                use
                for use in (*block.reads, *block.writes)
                if not block.owner.knows(use.timeline, use.number)
            ]

    def _forget(self, key: int, gone: "weakref.ref[torch.UntypedStorage]") -> None:
        block = self._blocks.get(key)
        if block is not None and block.storage is gone:
            del self._blocks[key]
            self._free(block)


def _in(use: Use, other: Use) -> bool:
    return other.start <= use.start and use.stop <= other.stop
