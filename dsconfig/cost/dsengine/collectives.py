"""Collectives between ranks, and their buffers.

[Note: what fully_shard holds] Gathering a unit: in mixed precision a cast of the shards, a flat
output, then the parameters copied out of it. In forward the flat output is freed when the next unit
has arrived, in backward at once. Reducing a unit: the input, which is freed when the next unit is
reduced, the last gradient of the unit, the output, and its fp32 cast if communication is narrower.
All other gradients of the unit are freed by then.

[Note: what the exchange over gloo holds] Flat buffers are reused from unit to unit, one that is too
small is replaced by a larger one, and all are freed when backward ends. A reduction that nothing
waits for finishes when the next one starts: until then its input and the shards received from the
other ranks are in use.
"""

from collections.abc import Iterable
from itertools import pairwise

from dsconfig import tiles
from dsconfig.cost.dsengine import categories
from dsconfig.cost.dsengine.sharding import Group
from dsconfig.cost.timeline import Category, Timeline
from dsconfig.cost.weights import Weight
from dsconfig.cost.workload import Workload
from dsconfig.runtimes.effective import Tier


class Collectives:
    """Gathers and reductions as ``fully_shard`` makes them, one flat buffer for each."""

    def __init__(self, job: Workload, line: Timeline) -> None:
        self._line = line
        self._ranks = job.ranks
        self._width = job.width
        # Shards with the dtype of the unit, on its device, are gathered in place, as are frozen
        # ones.
        self._moves = job.effective.zero.parameter_tier is not Tier.DEVICE
        self._casts = job.shard_width != job.width
        self._held = job.gradient_width
        self._wire = job.communication_width
        self._last = 0  # bytes of the flat output of the gather before

    def gather_to_stay(self, group: Group, part: Category) -> None:
        """Gather a unit once, through a buffer that is freed at once."""
        line, amount = self._line, group.elements * self._width
        through = amount if self._ranks > 1 else 0
        line.hold(categories.GATHER_BUFFER, through)
        line.hold(part, amount)
        self._copy_alone(group)
        line.free(categories.GATHER_BUFFER, through)

    def start_gather(self, group: Group) -> None:
        if self._ranks > 1:
            copied = group.elements if self._moves else group.trainable if self._casts else 0
            cast = copied * self._width // self._ranks
            self._line.hold(categories.CAST_SHARDS, cast)
            self._take_output(group.elements)
            self._line.free(categories.CAST_SHARDS)

    def _take_output(self, elements: int) -> None:
        self._line.hold(categories.GATHER_BUFFER, elements * self._width)

    def arrive(self, group: Group, *, forward: bool) -> None:
        """Finish the gather: copy the parameters out."""
        line, amount = self._line, group.elements * self._width
        line.hold(categories.GATHERED, amount)
        self._copy_alone(group)
        line.free(categories.GATHER_BUFFER, self._last if forward else amount)
        self._last = amount if forward else 0

    def _copy_alone(self, group: Group) -> None:
        """Hold the shards that a single rank moves or casts one by one."""
        if self._ranks == 1 and (self._moves or self._casts):
            copied = group.copied if self._moves else group.copied_trained
            self._line.hold_briefly(categories.CAST_SHARDS, copied * self._width)

    def end_forward(self) -> None:
        self._line.free(categories.GATHER_BUFFER, self._last)
        self._last = 0

    def take_input(self, elements: int) -> None:
        """Allocate the tensor that the gradients of a unit are copied into."""
        self._line.free(categories.REDUCE_INPUT)
        self._line.hold(categories.REDUCE_INPUT, elements * self._held)

    def reduce(self, elements: int, *, may_wait: bool) -> None:
        """Reduce the input."""
        if self._held != self._wire:
            self._line.hold_briefly(categories.CAST_INPUT, elements * self._wire)

    def end_backward(self) -> None:
        self._line.free(categories.REDUCE_INPUT)
        self._line.free(categories.GATHER_BUFFER)


class Exchange(Collectives):
    """Shards sent from rank to rank, over gloo."""

    def __init__(self, job: Workload, line: Timeline) -> None:
        super().__init__(job, line)
        self._gathers = _Buffers(line, categories.GATHER_BUFFER, self._width)
        self._arriving: list[int] = []
        self._arrived: list[int] = []
        self._inputs = _Buffers(line, categories.EXCHANGED, self._held)
        self._pieces = self._inputs  # one pool for each dtype
        if self._held != self._wire:
            self._pieces = _Buffers(line, categories.EXCHANGED, self._wire)
        self._lent = 0
        self._cast = 0
        self._in_flight: list[tuple[_Buffers, int]] = []

    def _take_output(self, elements: int) -> None:
        self._reclaim()
        self._arriving.append(self._gathers.take(elements))

    def _reclaim(self) -> None:
        for buffer in self._arrived:
            self._gathers.give(buffer)
        self._arrived.clear()

    def arrive(self, group: Group, *, forward: bool) -> None:
        self._line.hold(categories.GATHERED, group.elements * self._width)
        if self._arriving:
            self._arrived.append(self._arriving.pop(0))

    def end_forward(self) -> None:
        """Keep the buffers for backward."""

    def take_input(self, elements: int) -> None:
        self._lent = self._inputs.take(elements)

    def reduce(self, elements: int, *, may_wait: bool) -> None:
        cast = elements * self._wire if self._held != self._wire else 0
        self._line.hold(categories.CAST_INPUT, cast)
        self._finish()
        self._cast = cast
        for _ in range(self._ranks - 1):
            self._in_flight.append((self._pieces, self._pieces.take(elements // self._ranks)))
        self._in_flight.append((self._inputs, self._lent))
        if not may_wait:
            self._finish()

    def _finish(self) -> None:
        self._line.free(categories.CAST_INPUT, self._cast)
        self._cast = 0
        while self._in_flight:
            buffers, size = self._in_flight.pop()
            buffers.give(size)

    def end_backward(self) -> None:
        self._finish()
        self._inputs.clear()
        self._pieces.clear()
        self._reclaim()
        self._gathers.clear()


class _Buffers:
    """Sizes, in elements, of the unused buffers."""

    def __init__(self, line: Timeline, part: Category, width: int) -> None:
        self._line, self._part, self._width = line, part, width
        self._free: list[int] = []

    def take(self, elements: int) -> int:
        """Return the size of a buffer for ``elements``."""
        for place, size in enumerate(self._free):
            if size >= elements:
                return self._free.pop(place)
        self.clear()
        self._line.hold(self._part, elements * self._width)
        return elements

    def give(self, size: int) -> None:
        self._free.append(size)

    def clear(self) -> None:
        for size in self._free:
            self._line.free(self._part, size * self._width)
        self._free.clear()


def broadcast_bytes(job: Workload, weights: Iterable[Weight]) -> int:
    """Return the peak bytes of copies if these weights are broadcast in order.

    PyTorch's ``_broadcast_coalesced`` flattens tensors of a dtype up to tiles.BROADCAST_BYTES, and
    keeps two such broadcasts in flight; a single tensor is sent without a copy.
    """
    full: list[tuple[int, list[int]]] = []  # where a bucket begins, and its sizes
    filling: dict[int, tuple[int, list[int]]] = {}  # by width
    for place, each in enumerate(weights):
        width = job.master_width if each.trainable else job.width
        bucket = filling.setdefault(width, (place, []))
        bucket[1].append(each.elements * width)
        if sum(bucket[1]) >= tiles.BROADCAST_BYTES:
            full.append(filling.pop(width))
    buckets = [sizes for _, sizes in sorted([*full, *filling.values()])]
    copies = [0, *(sum(sizes) if len(sizes) > 1 else 0 for sizes in buckets), 0]
    return max(first + second for first, second in pairwise(copies))
