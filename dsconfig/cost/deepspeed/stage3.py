"""Stage 3: sharded weights, gathered around their use; gradients reduced into shards."""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import islice
from threading import Lock

from dsconfig.cost.categories import CONSTANTS, MOMENTS, TEMPORARIES
from dsconfig.cost.deepspeed import categories
from dsconfig.cost.deepspeed.buckets import NORM_WIDTH
from dsconfig.cost.deepspeed.coordinator import (
    Coordinator,
    Gather,
    IterationKey,
    bucket_width,
    persistent_weights,
)
from dsconfig.cost.deepspeed.releases import FLAT_STAGE3, GATHERS_IN_PLACE
from dsconfig.cost.estimate import Phase
from dsconfig.cost.optimizers import muon_bytes
from dsconfig.cost.timeline import Recorder, Segment, Timeline, Trace, run_backward, run_forward
from dsconfig.cost.weights import OUTSIDE, Weight, Weights
from dsconfig.cost.workload import Workload
from dsconfig.runtimes.effective import Tier

NORM_ELEMENTS = 250_000_000
"""A norm is computed over chunks of this size (``_constant_buffered_norm2``)."""
BACKLOG_BUCKETS = 3
"""DeepSpeed allows two outstanding reductions besides the one in progress."""


def simulate(job: Workload) -> Trace:
    """Replay one rank from creation to the step, as from the third iteration on."""
    line = Timeline(job.memory_budget)
    owned = job.shards(job.weights.trained_sizes)
    _create(job, line, owned)
    line.enter(Phase.FORWARD)
    if job.effective.zero.optimizer_tier is Tier.DEVICE and not job.optimizer.eager:
        line.hold(MOMENTS, job.optimizer.state_bytes(owned, job.state_width))
    _hold_copies(job, line)
    _run(job, line)
    line.enter(Phase.STEP)
    _step(job, line, owned)
    return line.trace()


def _create(job: Workload, line: Timeline, owned: int) -> None:
    zero = job.effective.zero
    shards = job.shards(job.weights.sizes)
    line.hold(CONSTANTS, job.weights.constant_bytes)
    if not job.builds_in_pieces:
        # The full model goes to the device, and parameters are sharded there one by one. Then
        # the shards are flattened in host memory, and the cache is emptied meanwhile
        # (``defragment``, read in 0.6.7 to 0.19.8).
        line.hold(categories.CREATED, job.elements * job.width)
        line.hold_briefly(categories.WEIGHTS, job.shard(job.weights.largest) * job.width)
        line.free(categories.CREATED)
        line.empty_cache()
    if zero.parameter_tier is Tier.DEVICE:
        line.hold(categories.WEIGHTS, shards * job.width)
    if zero.hpz_partition_size > 1:
        line.hold(categories.SECONDARY, job.elements * job.width // zero.hpz_partition_size)
    if zero.optimizer_tier is Tier.DEVICE:
        line.hold(categories.MASTER, owned * job.master_width)
        group = min(owned, zero.sub_group_size)
        line.hold_briefly(categories.ZERO_GRADIENT, group * job.master_width)
        if job.optimizer.eager:
            line.hold(MOMENTS, job.optimizer.state_bytes(owned, job.state_width))
    elif zero.offload_optimizer is not None and zero.offload_optimizer.ratio < 1:
        kept = owned - int(owned * zero.offload_optimizer.ratio)
        line.hold(categories.MASTER, kept * job.master_width)
        line.hold(MOMENTS, job.optimizer.state_bytes(kept, job.state_width))
    if job.version >= FLAT_STAGE3:
        line.hold(categories.BUCKET, zero.reduce_bucket_size * bucket_width(job))
    if zero.optimizer_tier is Tier.DEVICE:
        line.hold(categories.GRADIENT_SHARDS, owned * job.accumulation_width)
    line.hold_briefly(categories.CREATION_GATHER, _creation_gather(job))


def _creation_gather(job: Workload) -> int:
    """Return the bytes for the largest parameter, each of which is gathered alone to register its
    hook.

    A shard in host memory passes through the device.
    """
    largest = job.largest_trained
    alone = Gather.of(job)
    if alone is not Gather.RANKS:
        return 0 if alone is Gather.VIEW else largest * job.width
    if job.version < GATHERS_IN_PLACE:
        return 2 * largest * job.width
    offloaded = job.effective.zero.parameter_tier is not Tier.DEVICE
    return (largest + (job.shard(largest) if offloaded else 0)) * job.width


def _hold_copies(job: Workload, line: Timeline) -> None:
    """Hold unsharded small parameters, as from the second iteration on."""
    small = sum(
        job.weights[index].elements for index in persistent_weights(job.weights, job.effective.zero)
    )
    if Gather.of(job) is not Gather.VIEW:
        line.hold(categories.PERSISTENT, small * job.width)
    line.free(categories.SECONDARY)  # freed at the end of each step


class Recording:
    """Gathers, releases and reductions of one iteration, by segments in the order of use.

    Recorded lazily: a replay that exceeds its budget does not record the rest.
    """

    def __init__(self, job: IterationKey) -> None:
        self._ahead = _Iteration(job).segments()
        self._recorded: list[Segment] = []
        self._lock = Lock()

    def __iter__(self) -> Iterator[Segment]:
        place = 0
        while place < len(self._recorded) or self._record(place):
            yield self._recorded[place]
            place += 1

    def _record(self, place: int) -> bool:
        """Return whether there is a segment at this index, which may be the next one."""
        with self._lock:
            if place == len(self._recorded):
                self._recorded.extend(islice(self._ahead, 1))
        return place < len(self._recorded)


def _run(job: Workload, line: Timeline) -> None:
    """Replay forward and backward."""
    segments = iter(recording_of(IterationKey.of(job)))
    run_forward(job, line, lambda _, __: line.replay(next(segments)))
    line.enter(Phase.BACKWARD)
    _make_buckets(job, line)
    run_backward(job, line, lambda _, __: line.replay(next(segments)))
    line.replay(next(segments))  # the last bucket
    line.free(categories.BACKLOG)
    if job.version < FLAT_STAGE3:
        line.free(categories.BUCKET)
        line.free(categories.SECOND_BUCKET)


def _make_buckets(job: Workload, line: Timeline) -> None:
    """Allocate the buckets of releases before 0.6.0: one in each backward, two with
    overlap_comm."""
    zero = job.effective.zero
    if zero.contiguous_gradients and not line.held_bytes(categories.BUCKET):
        amount = zero.reduce_bucket_size * job.width
        line.hold(categories.BUCKET, amount)
        if zero.overlap_comm:
            line.hold(categories.SECOND_BUCKET, amount)


@lru_cache(maxsize=64)
def recording_of(job: IterationKey) -> Recording:
    """Return one iteration; workloads with an equal key share it."""
    return Recording(job)


class _Iteration:
    """Forward and backward over the modules, with gathers, releases and reductions."""

    def __init__(self, job: IterationKey) -> None:
        self._job, self._line = job, Recorder()
        self._modules = _modules_of(job.weights)
        self._stretches = _in_modules(job.weights, self._modules)
        self._coordinator = Coordinator(job, self._line, self._modules, self._order())
        self._queues = job.zero.overlap_comm and not job.on_cpu
        self._fill = 0  # elements in the bucket
        self._in_fill = 0  # gradients in the bucket
        self._largest = 0  # elements of the largest of them

    def segments(self) -> Iterator[Segment]:
        """Yield one iteration: forward, backward, the last bucket."""
        for _, modules in self._stretches:
            self._use(modules)
            yield self._line.cut()
        for segment in reversed(self._stretches):
            yield self._backward(*segment)
        self._reduce()
        yield self._line.cut()

    def _recomputed(self, block: int, modules: list[int]) -> list[int]:
        return modules if self._job.recomputes and block != OUTSIDE else []

    def _order(self) -> list[int]:
        """Return the modules in the order of one iteration: forward, then backward by segments."""
        order = list(range(len(self._modules)))
        for block, modules in reversed(self._stretches):
            order += self._recomputed(block, modules)
            order += reversed(modules)
        return order

    def _use(self, modules: Sequence[int]) -> None:
        for module in modules:
            self._coordinator.fetch(module)
            self._coordinator.release(module)

    def _backward(self, block: int, modules: list[int]) -> Segment:
        self._use(self._recomputed(block, modules))
        weights = self._job.weights
        for module in reversed(modules):
            self._coordinator.fetch(module)
            for index in reversed(self._modules[module]):
                if weights[index].trainable:
                    self._gradient(weights[index].elements)
            self._coordinator.release(module)
        return self._line.cut()

    def _gradient(self, elements: int) -> None:
        """Put one gradient into the bucket, which is reduced first if it would overflow."""
        job, line = self._job, self._line
        size = job.zero.reduce_bucket_size
        line.hold(categories.GRADIENTS, elements * job.width)
        if self._fill + elements > size:
            self._reduce()
        self._largest = max(self._largest, elements)
        if elements <= size and job.zero.contiguous_gradients:
            line.free(categories.GRADIENTS, elements * job.width)
            if self._queues:  # a reduction on its own stream frees it several buckets later
                free = BACKLOG_BUCKETS * size * job.width - line.held_bytes(categories.BACKLOG)
                line.hold(categories.BACKLOG, min(free, elements * job.width))
        self._fill += elements
        self._in_fill += 1
        if elements > size:
            self._reduce()

    def _reduce(self) -> None:
        """Reduce-scatter: several gradients are interleaved in a copy; gloo makes another."""
        job, line = self._job, self._line
        amount = self._fill * job.communication_width
        alone = self._fill > job.zero.reduce_bucket_size
        in_bucket = job.zero.contiguous_gradients and not alone
        is_wide = job.bucket_width == job.communication_width
        if job.communication_width != job.width and not (in_bucket and is_wide):
            line.hold(categories.CAST, amount)  # otherwise the bucket has the communication dtype
        if self._in_fill > 1:
            line.hold(categories.STAGING, amount)
        if job.on_cpu:
            line.hold_briefly(categories.GLOO_COPY, amount)
        self._offload_gradients()
        line.free(categories.STAGING)
        line.free(categories.CAST)
        self._fill = self._in_fill = self._largest = 0
        # A gradient larger than the bucket is freed with its reduction.
        largest = job.zero.reduce_bucket_size * job.width
        if line.held_bytes(categories.GRADIENTS) > largest:
            line.free(categories.GRADIENTS)

    def _offload_gradients(self) -> None:
        """Send gradient shards to the host one by one: each returns once, to be added to or for its
        norm in fp64, by 2.5e8 elements (``partition_grads``)."""
        job = self._job
        if not job.sending:
            return
        part = -(-self._largest // job.sending)
        back = 0 if job.on_cpu else part * job.width
        self._line.hold(categories.SENT_GRADIENT, back)
        self._line.hold_briefly(categories.GRADIENT_NORM, min(part, NORM_ELEMENTS) * NORM_WIDTH)
        self._line.free(categories.SENT_GRADIENT)


def _modules_of(weights: Sequence[Weight]) -> list[list[int]]:
    """Return the indices of weights by module, in registration order."""
    found: dict[int, list[int]] = {}
    for index, weight in enumerate(weights):
        found.setdefault(weight.module, []).append(index)
    return list(found.values())


def _in_modules(weights: Weights, modules: list[list[int]]) -> list[tuple[int, list[int]]]:
    """Return (block, indices of its modules) of each segment, in order."""
    place = {index: place for place, indices in enumerate(modules) for index in indices}
    return [
        (block, list(dict.fromkeys(place[index] for index in indices)))
        for block, indices in weights.segments
    ]


def _orthogonalize(job: Workload, line: Timeline) -> None:
    """Hold gradients and momentum of as many unsharded matrices as fit a bucket
    (``_apply_muon_to_accumulated_grads`` of 0.19.8)."""
    width = job.communication_width
    matrices = int(job.trained * (1 - job.optimizer.share_of_adam))
    gathered = min(matrices, max(job.effective.zero.reduce_bucket_size, job.largest_trained))
    line.hold_briefly(categories.ORTHOGONALIZED, 2 * gathered * width + muon_bytes(job, width))


def _step(job: Workload, line: Timeline, owned: int) -> None:
    """Update one sub-group after the other; persistent parameters are released and
    gathered again."""
    zero = job.effective.zero
    persistent = line.held_bytes(categories.PERSISTENT)
    line.free(categories.PERSISTENT)
    if zero.optimizer_tier is Tier.DEVICE:
        if job.optimizer.leaves_to_adam:
            _orthogonalize(job, line)
        group = min(owned, zero.sub_group_size)
        line.hold(categories.FLAT_GRADIENT, group * job.accumulation_width)
        if job.accumulation_width != job.master_width:
            line.hold(categories.STEP_GRADIENT, group * job.master_width)
            line.free(categories.FLAT_GRADIENT)
        temporaries = job.optimizer.temporaries(group, group, on_cpu=job.on_cpu)
        line.hold_briefly(TEMPORARIES, temporaries * job.master_width)
        line.free(categories.STEP_GRADIENT)
        line.free(categories.FLAT_GRADIENT)
    line.free(categories.SECONDARY)
    line.hold(categories.PERSISTENT, persistent)
    if Gather.of(job) is Gather.RANKS:
        line.hold_briefly(categories.GATHER_COPY, persistent)
