"""Stage 3: weights divided, gathered around their use; gradients reduced into shards."""

from dsconfig.cost.deepspeed import parts
from dsconfig.cost.deepspeed.coordinator import Coordinator, persistent_weights
from dsconfig.cost.deepspeed.releases import Release
from dsconfig.cost.estimate import Phase
from dsconfig.cost.timeline import Timeline, Trace, run_backward, run_forward, stretches
from dsconfig.cost.workload import OUTSIDE, Workload
from dsconfig.runtimes.effective import Tier

BACKLOG_BUCKETS = 3
"""DeepSpeed lets two reductions be outstanding besides the one in work."""


def simulate(job: Workload) -> Trace:
    """One rank from creation to the step, as from the third iteration on."""
    line = Timeline()
    owned = sum(job.shard(weight.elements) for weight in job.trainable)
    _create(job, line, owned)
    line.enter(Phase.FORWARD)
    if job.effective.zero.optimizer_tier is Tier.DEVICE and not job.optimizer.eager:
        line.hold(parts.MOMENTS, job.optimizer.state_bytes(owned, job.state_width))
    _hold_copies(job, line)
    _ModelPass(job, line).run()
    line.enter(Phase.STEP)
    _step(job, line, owned)
    return line.trace()


def _create(job: Workload, line: Timeline, owned: int) -> None:
    zero = job.effective.zero
    shards = sum(job.shard(weight.elements) for weight in job.weights)
    if not job.builds_in_pieces:
        # The whole model goes to the device, and parameters are divided there one by one. Then
        # the shards are laid together by way of the host, and the cache is emptied meanwhile
        # (``defragment``, read in 0.6.7 to 0.19.8).
        largest = max((weight.elements for weight in job.weights), default=0)
        line.hold(parts.CREATED, job.elements * job.width)
        line.blink(parts.WEIGHTS, job.shard(largest) * job.width)
        line.free(parts.CREATED)
        line.empty_cache()
    if zero.parameter_tier is Tier.DEVICE:
        line.hold(parts.WEIGHTS, shards * job.width)
    if zero.hpz_partition_size > 1:
        line.hold(parts.SECONDARY, job.elements * job.width // zero.hpz_partition_size)
    if zero.optimizer_tier is Tier.DEVICE:
        line.hold(parts.MASTER, owned * job.master_width)
        group = min(owned, zero.sub_group_size)
        line.blink(parts.ZERO_GRADIENT, group * job.master_width)
        if job.optimizer.eager:
            line.hold(parts.MOMENTS, job.optimizer.state_bytes(owned, job.state_width))
    elif zero.offload_optimizer is not None and zero.offload_optimizer.ratio < 1:
        kept = owned - int(owned * zero.offload_optimizer.ratio)
        line.hold(parts.MASTER, kept * job.master_width)
        line.hold(parts.MOMENTS, job.optimizer.state_bytes(kept, job.state_width))
    if Release(job.version).stage3_bucket_is_permanent:
        line.hold(parts.BUCKET, zero.reduce_bucket_size * _bucket_width(job))
    if zero.optimizer_tier is Tier.DEVICE:
        line.hold(parts.GRADIENT_SHARDS, owned * job.accumulation_width)
    line.blink(parts.CREATION_GATHER, _creation_gather(job))


def _creation_gather(job: Workload) -> int:
    """Bytes at the largest parameter, each of which is gathered alone to hang a hook on it.

    A shard in main memory passes through the device.
    """
    release = Release(job.version)
    largest = max((each.elements for each in job.trainable), default=0)
    if not release.gathers_in_place:
        return 2 * largest * job.width
    offloaded = job.effective.zero.parameter_tier is not Tier.DEVICE
    return (largest + (job.shard(largest) if offloaded else 0)) * job.width


def _bucket_width(job: Workload) -> int:
    follows = Release(job.version).stage3_bucket_follows_wire
    return job.communication_width if follows else job.width


def _hold_copies(job: Workload, line: Timeline) -> None:
    """Whole small parameters, as from the second iteration on."""
    small = sum(job.weights[index].elements for index in persistent_weights(job))
    line.hold(parts.PERSISTENT, small * job.width)
    line.free(parts.SECONDARY)  # given up at the end of each step


class _ModelPass:
    """Forward and backward over the modules, with gathers, releases and reductions."""

    def __init__(self, job: Workload, line: Timeline) -> None:
        self._job, self._line = job, line
        self._modules = _modules_of(job)
        self._recomputes = job.activations.recomputed > 0
        self._coordinator = Coordinator(job, line, self._modules, self._order())
        self._waits = job.effective.zero.overlap_comm and not job.on_cpu
        self._bucket_is_wide = _bucket_width(job) == job.communication_width
        self._fill = 0  # elements in the bucket
        self._in_fill = 0  # gradients in the bucket

    def run(self) -> None:
        job, line = self._job, self._line
        place = self._place()
        run_forward(job, line, lambda _, indices: self._forward(place, indices))
        line.enter(Phase.BACKWARD)
        self._make_buckets()

        def differentiate(block: int, indices: list[int]) -> None:
            modules = _in_order(place, indices)
            if self._recomputes and block != OUTSIDE:
                for module in modules:
                    self._coordinator.fetch(module)
                    self._coordinator.release(module)
            for module in reversed(modules):
                self._backward(module)

        run_backward(job, line, differentiate)
        self._reduce()
        line.free(parts.BACKLOG)
        if not Release(job.version).stage3_bucket_is_permanent:
            line.free(parts.BUCKET)
            line.free(parts.SECOND_BUCKET)

    def _make_buckets(self) -> None:
        """Before 0.6.0: one in each backward, two with overlap_comm."""
        zero = self._job.effective.zero
        if zero.contiguous_gradients and not self._line.held(parts.BUCKET):
            amount = zero.reduce_bucket_size * self._job.width
            self._line.hold(parts.BUCKET, amount)
            if zero.overlap_comm:
                self._line.hold(parts.SECOND_BUCKET, amount)

    def _place(self) -> dict[int, int]:
        return {index: place for place, indices in enumerate(self._modules) for index in indices}

    def _order(self) -> list[int]:
        """Modules as they run in one iteration: forward, then backward by stretches."""
        place = self._place()
        order = list(range(len(self._modules)))
        for block, indices in list(stretches(self._job.weights))[::-1]:
            modules = _in_order(place, indices)
            if self._recomputes and block != OUTSIDE:
                order += modules
            order += reversed(modules)
        return order

    def _forward(self, place: dict[int, int], indices: list[int]) -> None:
        for module in _in_order(place, indices):
            self._coordinator.fetch(module)
            self._coordinator.release(module)

    def _backward(self, module: int) -> None:
        self._coordinator.fetch(module)
        for index in reversed(self._modules[module]):
            if self._job.weights[index].trainable:
                self._gradient(self._job.weights[index].elements)
        self._coordinator.release(module)

    def _gradient(self, elements: int) -> None:
        """One gradient: into the bucket, which is emptied first if it would run over."""
        job, line = self._job, self._line
        size = job.effective.zero.reduce_bucket_size
        line.hold(parts.GRADIENTS, elements * job.width)
        if self._fill + elements > size:
            self._reduce()
        if elements > size or not job.effective.zero.contiguous_gradients:
            self._in_fill += 1
            self._fill += elements
            if elements > size:
                self._reduce()
            return
        line.free(parts.GRADIENTS, elements * job.width)
        self._wait(elements)
        self._fill += elements
        self._in_fill += 1

    def _wait(self, elements: int) -> None:
        """With a stream of its own the reduction lets go of a gradient buckets later."""
        if not self._waits:
            return
        zero, line = self._job.effective.zero, self._line
        limit = BACKLOG_BUCKETS * zero.reduce_bucket_size * self._job.width
        room = limit - line.held(parts.BACKLOG)
        line.hold(parts.BACKLOG, min(room, elements * self._job.width))

    def _reduce(self) -> None:
        """Reduce-scatter: several gradients are interleaved in a copy; gloo makes another."""
        job, line = self._job, self._line
        amount = self._fill * job.communication_width
        alone = self._fill > job.effective.zero.reduce_bucket_size
        in_bucket = job.effective.zero.contiguous_gradients and not alone
        if job.communication_width != job.width and not (in_bucket and self._bucket_is_wide):
            line.hold(parts.CAST, amount)  # else the bucket itself has the communication dtype
        if self._in_fill > 1:
            line.hold(parts.STAGING, amount)
        if job.on_cpu:
            line.blink(parts.GLOO_COPY, amount)
        line.free(parts.STAGING)
        line.free(parts.CAST)
        self._fill = self._in_fill = 0
        # What never fitted in the bucket is freed with its reduction.
        largest = job.effective.zero.reduce_bucket_size * job.width
        if line.held(parts.GRADIENTS) > largest:
            line.free(parts.GRADIENTS)


def _modules_of(job: Workload) -> list[list[int]]:
    """Indices of weights by module, in registration order."""
    found: dict[int, list[int]] = {}
    for index, weight in enumerate(job.weights):
        found.setdefault(weight.module, []).append(index)
    return list(found.values())


def _in_order(place: dict[int, int], indices: list[int]) -> list[int]:
    return list(dict.fromkeys(place[index] for index in indices))


def _step(job: Workload, line: Timeline, owned: int) -> None:
    """One sub-group after the other; whole parameters are given up and gathered again."""
    zero = job.effective.zero
    persistent = line.held(parts.PERSISTENT)
    line.free(parts.PERSISTENT)
    if zero.optimizer_tier is Tier.DEVICE:
        group = min(owned, zero.sub_group_size)
        line.hold(parts.FLAT_GRADIENT, group * job.accumulation_width)
        if job.accumulation_width != job.master_width:
            line.hold(parts.STEP_GRADIENT, group * job.master_width)
            line.free(parts.FLAT_GRADIENT)
        line.blink(parts.TEMPORARIES, group * job.master_width * job.optimizer.temporaries)
        line.free(parts.STEP_GRADIENT)
        line.free(parts.FLAT_GRADIENT)
    line.free(parts.SECONDARY)
    line.hold(parts.PERSISTENT, persistent)
    line.blink(parts.GATHER_COPY, persistent)
