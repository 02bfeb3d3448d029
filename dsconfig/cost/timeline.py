"""A simulated run of one rank: allocations over time, and the peak of each phase.

The peak of a phase is a maximum over time, not a sum over components, so allocations and releases
are replayed in the order in which the runtime makes them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple, TypeVar

from dsconfig.cost.estimate import Component, Phase
from dsconfig.cost.weights import OUTSIDE
from dsconfig.cost.workload import Workload
from dsconfig.report.sizes import size

K = TypeVar("K")
SHAPED = frozenset(
    {
        "activations",
        "activations of other micro batches",
        "logits and loss",
        "scores of sparse attention",
        "working set of one block",
    }
)
"""Categories that depend on kernels and shapes; everything else follows exactly from the config."""


class Category(NamedTuple):
    """A kind of allocation: name, the config key that causes it, formula."""

    name: str
    pointer: str
    formula: str = ""
    stream: str = "compute"
    """CUDA stream it is allocated on: the caching allocator keeps a pool for each."""
    communicated: bool = False
    """Whether it exists only for communication."""


DEQUANTIZED = Category(
    "dequantized weight",
    "",
    "compute-dtype bytes per element of the largest quantized weight, for its product",
)


@dataclass(frozen=True, slots=True)
class Trace:
    """Bytes at the peak and at the end of each phase, and the components of the peak."""

    peaks: dict[Phase, int]
    end_bytes: dict[Phase, int]
    parts: dict[Phase, dict[Category, int]]
    pools: dict[str, int]
    """Peak bytes of each stream's own allocations since the cache was last emptied."""
    pooled_before: int
    """The same in total, up to the last time the cache was emptied."""
    buckets: int
    """Peak of buckets and their copies, which may occur at another time than the peak."""

    @property
    def peak_phase(self) -> Phase:
        return max(self.peaks, key=lambda phase: self.peaks[phase])

    @property
    def peak(self) -> int:
        return max(self.peaks.values())

    @property
    def pooled(self) -> int:
        """Return the sum of the streams' own peaks: memory freed on one stream is not reused by
        another."""
        return max(self.pooled_before, sum(self.pools.values()))

    def components(self) -> tuple[Component, ...]:
        """Return the components; for each phase they add up to its peak, to the byte."""
        phases_of: dict[tuple[Category, int], list[Phase]] = {}
        for phase, held in self.parts.items():
            for part, amount in held.items():
                if amount:
                    phases_of.setdefault((part, amount), []).append(phase)
        return tuple(
            Component(part.name, amount, part.pointer, part.formula, tuple(phases))
            for (part, amount), phases in phases_of.items()
        )


@dataclass(frozen=True, slots=True)
class Segment:
    """A recorded part of a run, relative to its start, that can be replayed."""

    change: Mapping[Category, int]
    """In the order of first allocation, including categories freed by the end."""
    total: int
    highest: int
    """The maximum just before a release; its components are ``at_highest``."""
    at_highest: Mapping[Category, int] | None
    """None if nothing is released."""
    streams: Mapping[str, int]
    pools: Mapping[str, int]
    bucket_bytes: int
    bucket_peak: int


class BudgetExceeded(Exception):
    """The allocation exceeds the given budget; the rest of the replay cannot change that."""


class Timeline:
    """Record allocations and releases; bytes of the same category are counted together.

    Memory only grows until something is released, so peaks are checked just before a release and at
    the end of a phase: a search replays thousands of timelines. Raises BudgetExceeded there if they
    exceed ``budget``.
    """

    def __init__(self, budget: int | None = None) -> None:
        self._budget = inf if budget is None else budget
        self.phase = Phase.INIT
        self.total = 0
        self._held: dict[Category, int] = {}
        self._highest = -1  # of the current phase so far
        self._peaks: dict[Phase, int] = {}
        self._end_bytes: dict[Phase, int] = {}
        self._parts: dict[Phase, dict[Category, int]] = {}
        self._streams: dict[str, int] = {}
        self._pools: dict[str, int] = {}
        self._pooled_before = 0
        self._bucket_bytes = self._bucket_peak = 0

    def enter(self, phase: Phase) -> None:
        """End the current phase and start the next with the current allocations."""
        self._note_peak()
        self._end_bytes[self.phase] = self.total
        self.phase = phase
        self._highest = self._peaks.get(phase, -1)

    def hold(self, part: Category, amount: int) -> None:
        if not amount:
            return
        self._held[part] = self._held.get(part, 0) + amount
        self.total += amount
        stream = part.stream
        self._streams[stream] = self._streams.get(stream, 0) + amount
        if part.communicated:
            self._bucket_bytes += amount

    def free(self, part: Category, amount: int | None = None) -> None:
        """Release ``amount`` bytes of a category, or all of it."""
        held = self._held.get(part, 0)
        released = held if amount is None or amount > held else amount
        if not released:
            return
        if self.total > self._highest:
            self._note_peak()
        stream = part.stream
        on_stream = self._streams[stream]
        if on_stream > self._pools.get(stream, 0):
            self._pools[stream] = on_stream
        self._streams[stream] = on_stream - released
        self._held[part] = held - released
        self.total -= released
        if part.communicated:
            if self._bucket_bytes > self._bucket_peak:
                self._bucket_peak = self._bucket_bytes
            self._bucket_bytes -= released

    def hold_briefly(self, part: Category, amount: int) -> None:
        """Allocate and release at once."""
        self.hold(part, amount)
        self.free(part, amount)

    def empty_cache(self) -> None:
        """Return unused blocks of the allocator: every stream starts anew."""
        self._note_pools()
        self._pooled_before = max(self._pooled_before, sum(self._pools.values()))
        self._pools = {}

    def _note_pools(self) -> None:
        for stream, amount in self._streams.items():
            self._pools[stream] = max(amount, self._pools.get(stream, 0))

    def held_bytes(self, part: Category) -> int:
        return self._held.get(part, 0)

    def replay(self, segment: Segment) -> None:
        """Apply a recorded segment, equivalent to its allocations and releases."""
        if segment.at_highest is not None and self.total + segment.highest > self._highest:
            self._note(self.total + segment.highest, _sum(self._held, segment.at_highest))
        for stream, highest in segment.pools.items():
            most = self._streams.get(stream, 0) + highest
            self._pools[stream] = max(most, self._pools.get(stream, 0))
        self._bucket_peak = max(self._bucket_peak, self._bucket_bytes + segment.bucket_peak)
        self._held = _sum(self._held, segment.change)
        self._streams = _sum(self._streams, segment.streams)
        self.total += segment.total
        self._bucket_bytes += segment.bucket_bytes

    def _note_peak(self) -> None:
        if self.total > self._highest:
            self._note(self.total, dict(self._held))

    def _note(self, total: int, held: dict[Category, int]) -> None:
        if total > self._budget:
            raise BudgetExceeded
        self._highest = self._peaks[self.phase] = total
        self._parts[self.phase] = held

    def trace(self) -> Trace:
        self._note_peak()
        self._end_bytes[self.phase] = self.total
        self._note_pools()
        buckets = max(self._bucket_peak, self._bucket_bytes)
        before = self._pooled_before
        return Trace(self._peaks, self._end_bytes, self._parts, self._pools, before, buckets)


def _sum(one: Mapping[K, int], other: Mapping[K, int]) -> dict[K, int]:
    found = dict(one)
    for key, amount in other.items():
        found[key] = found.get(key, 0) + amount
    return found


class Recorder(Timeline):
    """A timeline that is cut into segments."""

    def __init__(self) -> None:
        super().__init__()
        self._begin()

    def _begin(self) -> None:
        self._total_before, self._held_before = self.total, dict(self._held)
        self._streams_before, self._bucket_before = dict(self._streams), self._bucket_bytes
        self._highest, self._bucket_peak = -1, self._bucket_bytes
        self._pools = {}
        self._parts = {}

    def cut(self) -> Segment:
        """Return the segment since the last cut."""
        before, noted = self._held_before, self._parts.get(self.phase)
        streams = self._streams_before
        found = Segment(
            change=_difference(self._held, before),
            total=self.total - self._total_before,
            highest=self._highest - self._total_before,
            at_highest=None if noted is None else _difference(noted, before),
            streams=_difference(self._streams, streams),
            pools={name: most - streams.get(name, 0) for name, most in self._pools.items()},
            bucket_bytes=self._bucket_bytes - self._bucket_before,
            bucket_peak=self._bucket_peak - self._bucket_before,
        )
        self._begin()
        return found


def _difference(later: Mapping[K, int], before: Mapping[K, int]) -> dict[K, int]:
    """Return what has changed, and what is new."""
    return {
        key: amount - before.get(key, 0)
        for key, amount in later.items()
        if key not in before or amount != before[key]
    }


def trained_backwards(job: Workload, indices: Sequence[int]) -> Iterator[int]:
    """Yield the indices of the trainable weights of a segment in the order of their gradients."""
    return (index for index in reversed(indices) if job.weights[index].trainable)


class ActivationCategories:
    """The categories of a run's activations, with this run's formulas."""

    def __init__(self, job: Workload) -> None:
        saved = job.activations
        pointer = saved.pointer
        self.kept = Category("activations", pointer, saved.formula)
        self.in_flight = Category(
            "activations of other micro batches",
            "/gradient_accumulation_steps",
            f"{saved.in_flight - 1} more micro batches in flight in the pipeline",
        )
        self.working = Category(
            "working set of one block",
            "/activation_checkpointing" if saved.recomputed else pointer,
            "gradients of its activations"
            + (", and the recomputed block" if saved.recomputed else "")
            + (f", with {size(saved.dispatched)} sent to experts" if saved.dispatched else ""),
        )
        self.selecting = Category(
            "scores of sparse attention", pointer, "fp32, two copies: 8 bytes x heads x s x s"
        )
        self.outside = Category(
            "embedding output and token ids", pointer, "kept by the loss and the last norm"
        )
        self.mask = Category("attention mask", "/sequence_parallel_size", "sequence length squared")
        self.logits = Category("logits and loss", pointer, saved.loss_formula)
        self._mask_bytes = job.mask_bytes
        self._per_micro_batch = saved.per_block * saved.blocks + saved.outside
        self._others = saved.in_flight - 1

    def run_block(self, line: Timeline, job: Workload) -> None:
        """Allocate what one block needs while it runs forward."""
        line.hold_briefly(DEQUANTIZED, job.dequantized_bytes)
        line.hold_briefly(self.selecting, job.activations.selecting)

    def recompute_block(self, line: Timeline, job: Workload) -> None:
        """Allocate what one block needs while backward recomputes it, if it does."""
        if job.activations.recomputed:
            line.hold_briefly(self.selecting, job.activations.selecting)

    def hold_in_flight(self, line: Timeline) -> None:
        """Allocate what the other micro batches of a pipeline keep, blocks and their inputs, and
        the mask, which is kept until the next one."""
        line.free(self.mask)
        line.hold(self.mask, self._mask_bytes)
        line.hold(self.in_flight, self._others * self._per_micro_batch)


def run_forward(
    job: Workload, line: Timeline, enter_block: Callable[[int, list[int]], None] | None = None
) -> None:
    """Allocate what forward keeps, block by block; ``enter_block`` is called before
    each segment."""
    categories = ActivationCategories(job)
    saved = job.activations
    categories.hold_in_flight(line)
    line.hold(categories.outside, saved.outside)
    counted = 0
    for block, indices in job.weights.segments:
        if enter_block is not None:
            enter_block(block, indices)
        if block != OUTSIDE and counted < saved.blocks:
            categories.run_block(line, job)
            line.hold(categories.kept, saved.per_block)
            counted += 1
    if counted < saved.blocks:
        line.hold(categories.kept, saved.per_block * (saved.blocks - counted))
    line.hold(categories.logits, saved.logits_forward)


def run_backward(
    job: Workload, line: Timeline, differentiate: Callable[[int, list[int]], None]
) -> None:
    """Go back block by block; ``differentiate`` makes the gradients of one segment."""
    categories = ActivationCategories(job)
    saved = job.activations
    line.hold(categories.logits, max(0, saved.logits_backward - saved.logits_forward))
    line.free(categories.logits)
    left = saved.blocks
    backwards = job.weights.segments[::-1]
    counted = sum(block != OUTSIDE for block, _ in backwards)
    for block, indices in backwards:
        inside = block != OUTSIDE
        if inside:
            categories.recompute_block(line, job)
            line.hold(categories.working, saved.recomputed + saved.temporaries)
            line.hold(DEQUANTIZED, job.dequantized_bytes)
        differentiate(block, indices)
        if inside:
            line.free(DEQUANTIZED)
            line.free(categories.working)
            freed = min(left, max(1, saved.blocks // max(1, counted)))
            line.free(categories.kept, saved.per_block * freed)
            left -= freed
    line.free(categories.kept)
    line.free(categories.outside)
    line.free(categories.in_flight)


def run_backward_holding(job: Workload, line: Timeline, part: Category, *, added: bool) -> None:
    """The same with gradients that are kept, or ``added`` to existing ones."""
    hold = line.hold_briefly if added else line.hold

    def differentiate(_: int, indices: list[int]) -> None:
        for index in trained_backwards(job, indices):
            hold(part, job.weights[index].elements * job.width)

    run_backward(job, line, differentiate)
