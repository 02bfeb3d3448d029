"""Stage 3's parameter coordinator: what is gathered when, and how long it stays.

From the second iteration on DeepSpeed knows the order of modules. Before a module runs, its
parameters are gathered if needed, then parameters are prefetched along the recorded order, up to
stage3_prefetch_bucket_size and never over stage3_max_live_parameters. After a module has run, its
parameters stay if they are needed again within stage3_max_reuse_distance elements.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from itertools import accumulate

from dsconfig.cost.deepspeed import categories
from dsconfig.cost.deepspeed.releases import (
    SKIPS_GATHERS_OF_ONE,
    STAGE3_BUCKET_FOLLOWS_WIRE,
    WRAPS_GIVEN_MODELS,
)
from dsconfig.cost.timeline import Timeline
from dsconfig.cost.weights import Weight, Weights
from dsconfig.cost.workload import Workload
from dsconfig.runtimes.effective import Tier, Zero


class Gather(Enum):
    """Source of an unsharded parameter."""

    RANKS = auto()
    """The shards of several ranks, through a buffer."""
    COPY = auto()
    """One rank has the full parameter in host memory."""
    VIEW = auto()
    """One rank has the full parameter on the device: nothing is allocated
    (``_no_gather_coalesced``)."""

    @classmethod
    def of(cls, job: Workload) -> "Gather":
        zero = job.effective.zero
        in_groups = zero.mics_shard_size > 0  # MiCS has its own gather, also for one rank
        if job.ranks > 1 or in_groups or job.version < SKIPS_GATHERS_OF_ONE:
            return cls.RANKS
        on_device = zero.parameter_tier is Tier.DEVICE or job.on_cpu
        return cls.VIEW if on_device else cls.COPY


@dataclass(frozen=True, slots=True)
class IterationKey:
    """What gathers and reductions of an iteration depend on: not the sequence length or number of
    samples, and of tiers only whether gradients are offloaded, so that the configs of a search
    share few."""

    zero: Zero
    width: int
    communication_width: int
    bucket_width: int
    keeps_linear: bool
    recomputes: bool
    gather: Gather
    on_cpu: bool
    sending: int
    """Ranks that divide offloaded gradients; 0 if they stay on the device."""
    weights: Weights = field(hash=False)
    """Excluded from the hash because of their number; equal ones are usually identical."""

    @classmethod
    def of(cls, job: Workload) -> "IterationKey":
        """Return the key of a workload."""
        return cls(
            zero=replace(job.effective.zero, offload_optimizer=None, offload_param=None),
            width=job.width,
            communication_width=job.communication_width,
            bucket_width=bucket_width(job),
            keeps_linear=keeps_linear(job),
            recomputes=job.activations.recomputed > 0,
            gather=Gather.of(job),
            on_cpu=job.on_cpu,
            sending=0 if job.effective.zero.optimizer_tier is Tier.DEVICE else job.ranks,
            weights=job.weights,
        )


class Coordinator:
    """Replay one iteration over ``order``, the sequence of modules (a module may recur)."""

    def __init__(
        self, job: IterationKey, line: Timeline, modules: list[list[int]], order: list[int]
    ) -> None:
        zero = job.zero
        self._line, self._modules, self._order = line, modules, order
        self._is_buffered = job.gather is Gather.RANKS
        width = 0 if job.gather is Gather.VIEW else job.width
        self._bytes = [weight.elements * width for weight in job.weights]
        self._elements = [weight.elements for weight in job.weights]
        self._quantized = zero.quantized_weights
        self._group = max(1, zero.hpz_partition_size)
        self._forward_ends = len(modules)
        self._kept: set[int] = set()  # weights that autograd holds since they were given up
        # bitsandbytes' product keeps its packed weight (``MatMul4Bit.forward``), as does torch's
        # own linear; with recomputation the reference is gone before backward.
        self._kept_by_autograd = [
            (weight.linear and job.keeps_linear) or (weight.quantized > 0 and not job.recomputes)
            for weight in job.weights
        ]
        self._secondary: set[int] = set()  # weights whose secondary shard has been made
        self._live_limit = zero.max_live_parameters
        self._prefetch = zero.prefetch_bucket_size
        self._reuse = zero.max_reuse_distance
        self.persistent = persistent_weights(job.weights, zero)
        self._state = ["sharded"] * len(job.weights)
        for index in self.persistent:
            self._state[index] = "gathered"
        self._available = 0
        self._step = 0
        self._queue = 0  # next place in the recorded order to fetch ahead
        self._needed_at = [-1] * len(job.weights)
        # The last position for which prefetching has seen the weight: it stays until then.
        self._in_flight: dict[int, list[int]] = {}  # weight -> the gather it is part of
        sizes = [sum(self._elements[i] for i in modules[module]) for module in order]
        self._elements_before = [0, *accumulate(sizes)]
        self._uses: dict[int, list[int]] = {}
        for place, module in enumerate(order):
            self._uses.setdefault(module, []).append(place)

    def fetch(self, module: int) -> None:
        """Gather the parameters of a module that is about to run."""
        needed = self._modules[module]
        missing = [index for index in needed if self._state[index] == "sharded"]
        if missing:
            self._gather(missing)
        for index in needed:
            if index in self._in_flight:
                self._arrive(self._in_flight[index])
        self._queue = max(self._queue, self._step + 1)
        self._fetch_ahead()
        self._step += 1

    def release(self, module: int) -> None:
        """Release the parameters of a module that has run, unless they are needed again soon."""
        uses = self._uses[module]
        following = bisect_right(uses, self._step - 1)
        if following < len(uses):
            distance = self._elements_before[uses[following]] - self._elements_before[self._step]
            if distance < self._reuse:
                return
        for index in self._modules[module]:
            if self._needed_at[index] > self._step or index in self.persistent:
                continue
            if self._state[index] == "gathered":
                self._state[index] = "sharded"
                self._available -= self._elements[index]
                self._line.free(categories.GATHERED, self._bytes[index])
                self._keep_secondary(index)
                self._keep_linear(index)

    def _keep_linear(self, index: int) -> None:
        """Keep a weight saved by torch's own linear function: its storage stays until its
        backward."""
        if not self._kept_by_autograd[index]:
            return
        if self._step <= self._forward_ends:
            self._kept.add(index)
            self._line.hold(categories.KEPT_LINEAR, self._bytes[index])
        elif index in self._kept:
            self._kept.remove(index)
            self._line.free(categories.KEPT_LINEAR, self._bytes[index])

    def _keep_secondary(self, index: int) -> None:
        """Keep the hpZ shard from the first release of a parameter until the step."""
        if self._group > 1 and index not in self._secondary:
            self._secondary.add(index)
            self._line.hold(categories.SECONDARY, -(-self._bytes[index] // self._group))

    def _fetch_ahead(self) -> None:
        if self._prefetch <= 0:
            return
        limit = min(self._live_limit - self._available, self._prefetch)
        ahead: list[int] = []
        fetched = 0
        while self._queue < len(self._order) and fetched < limit:
            for index in self._modules[self._order[self._queue]]:
                self._needed_at[index] = self._queue
                if self._state[index] == "sharded" and index not in ahead:
                    ahead.append(index)
                    fetched += self._elements[index]
            self._queue += 1
        if ahead:
            self._gather(ahead)

    def _gather(self, indices: list[int]) -> None:
        """Start one gather: one buffer for all, copied on arrival."""
        total = sum(self._bytes[index] for index in indices)
        for index in indices:
            self._state[index] = "in flight"
            self._in_flight[index] = indices
            self._available += self._elements[index]
        if self._is_buffered:
            self._line.hold(categories.GATHER_COPY, self._on_the_wire(total))

    def _arrive(self, indices: list[int]) -> None:
        """Finish the gather: parameters are copied out unless there is only one."""
        total = sum(self._bytes[index] for index in indices)
        buffered = self._on_the_wire(total) if self._is_buffered else 0
        if len(indices) == 1:
            self._line.free(categories.GATHER_COPY, buffered)
        self._line.hold(categories.GATHERED, total)
        if len(indices) > 1:
            self._line.free(categories.GATHER_COPY, buffered)
        for index in indices:
            self._state[index] = "gathered"
            del self._in_flight[index]

    def _on_the_wire(self, amount: int) -> int:
        """Return the bytes sent: 8-bit gathers send one byte per element (and a
        scale per group)."""
        return amount // 2 + amount // 128 if self._quantized else amount


def bucket_width(job: Workload) -> int:
    """Return the bytes of an element of the reduce bucket."""
    follows_wire = job.version >= STAGE3_BUCKET_FOLLOWS_WIRE
    return job.communication_width if follows_wire else job.width


def keeps_linear(job: Workload) -> bool:
    """Return whether autograd keeps gathered weights: torch's linear without recomputation."""
    reaches = job.builds_in_pieces or job.version >= WRAPS_GIVEN_MODELS
    wrapped = job.effective.zero.memory_efficient_linear and reaches
    return not wrapped and job.activations.recomputed == 0


def persistent_weights(weights: Sequence[Weight], zero: Zero) -> frozenset[int]:
    """Return the weights that stay gathered between steps: small ones, up to a total."""
    total = 0
    found: list[int] = []
    for index, weight in enumerate(weights):
        if weight.elements > zero.param_persistence_threshold:
            continue
        if total + weight.elements <= zero.model_persistence_threshold:
            total += weight.elements
            found.append(index)
    return frozenset(found)
