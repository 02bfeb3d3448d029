"""Stages 1 and 2: unsharded weights, sharded optimizer state; gradients go through buckets."""

from dsconfig.cost.categories import CONSTANTS, MOMENTS, TEMPORARIES
from dsconfig.cost.deepspeed import categories
from dsconfig.cost.deepspeed.buckets import (
    Buckets,
    Partition,
    free_buckets,
    gradient_width,
    hold_buckets,
)
from dsconfig.cost.deepspeed.releases import (
    CASTS_MASTERS_ON_DEVICE,
    COPIES_16_BIT_AGAIN,
    FLATTENS_ON_DEVICE,
    overflow_bytes,
)
from dsconfig.cost.estimate import Phase
from dsconfig.cost.optimizers import muon_bytes
from dsconfig.cost.timeline import (
    Timeline,
    Trace,
    run_backward,
    run_backward_holding,
    run_forward,
    trained_backwards,
)
from dsconfig.cost.workload import Workload
from dsconfig.runtimes.effective import Tier


def simulate(job: Workload) -> Trace:
    """Replay the rank with the largest memory, from creation to the step."""
    line = Timeline(job.memory_budget)
    partition = Partition.largest(job)
    _create(job, line, partition)
    line.enter(Phase.FORWARD)
    if job.accumulation > 1:
        _hold_accumulated(job, line, partition)
    run_forward(job, line)
    line.enter(Phase.BACKWARD)
    buckets = Buckets(job, line, partition)

    def differentiate(_: int, indices: list[int]) -> None:
        for index in trained_backwards(job, indices):
            buckets.gradient(index)

    run_backward(job, line, differentiate)
    buckets.finish()
    _orthogonalize(job, line, partition)
    line.enter(Phase.STEP)
    _step(job, line, partition)
    return line.trace()


def _orthogonalize(job: Workload, line: Timeline, partition: Partition) -> None:
    """Hold Muon's updates of all matrices that this rank touches, with their gradients
    (``get_flat_partition`` of 0.19.8)."""
    cost = job.optimizer
    if not cost.leaves_to_adam or job.effective.zero.optimizer_tier is not Tier.DEVICE:
        return
    width = gradient_width(job)
    line.hold(categories.ORTHOGONALIZED, _muons(job, partition) * width)
    line.hold_briefly(categories.ORTHOGONALIZED, muon_bytes(job, width))
    line.free(categories.ORTHOGONALIZED)


def _muons(job: Workload, partition: Partition) -> int:
    """Return the elements of the matrices that this rank touches, each in full."""
    return int(partition.touched * (1 - job.optimizer.share_of_adam))


def _create(job: Workload, line: Timeline, partition: Partition) -> None:
    width, own = job.width, partition.elements
    trainable = partition.total
    line.hold(categories.WEIGHTS, (trainable + job.frozen_elements) * width)
    line.hold(CONSTANTS, job.weights.constant_bytes)
    if flattens_on_device(job):
        line.hold_briefly(categories.FLAT_WEIGHTS, trainable * width)
    if job.effective.zero.optimizer_tier is not Tier.DEVICE:
        largest = job.largest_trained
        line.hold(categories.OFFLOAD_SCRATCH, largest * width)
        return
    master = own * job.master_width
    line.hold(categories.MASTER, master)
    line.hold_briefly(categories.FLAT_GRADIENT, own * width)
    line.hold_briefly(categories.ZERO_GRADIENT, master)
    state = job.optimizer.state_bytes(own, job.state_width)
    if not job.optimizer.eager:
        line.enter(Phase.FORWARD)
    line.hold(MOMENTS, state)
    if job.optimizer.leaves_to_adam:
        line.hold(categories.STAGED_MOMENTUM, _muons(job, partition) * gradient_width(job))


def flattens_on_device(job: Workload) -> bool:
    """Return whether the weights and their flat copy are on the device at the same time.

    ``available_memory`` is read once the model is there, and compared with the flat copy. On a CPU
    host memory is the same memory. An unknown device is assumed to have enough.
    """
    if job.on_cpu:
        return True
    if job.version < FLATTENS_ON_DEVICE:
        return False
    both = (job.elements + job.trained) * job.width
    return job.free_bytes is None or job.free_bytes >= both


def _hold_accumulated(job: Workload, line: Timeline, partition: Partition) -> None:
    """Hold what the earlier micro batches of the step have accumulated."""
    if job.effective.zero.optimizer_tier is not Tier.DEVICE:
        return
    if job.effective.zero.stage == 1:
        hold_buckets(job, line)  # kept until the boundary
        line.hold(categories.GRADIENTS, partition.total * gradient_width(job))
    elif partition.compact:
        line.hold(categories.PARTITION, partition.elements * job.accumulation_width)
    else:
        line.hold(categories.ACCUMULATED, partition.touched * job.width)


def _step(job: Workload, line: Timeline, partition: Partition) -> None:
    """Update one parameter group, the worst case: flatten, cast to fp32, update."""
    own = partition.elements
    gradients = (categories.PARTITION, categories.GRADIENTS, categories.ACCUMULATED)
    if job.effective.zero.optimizer_tier is not Tier.DEVICE:
        for part in gradients:
            line.free(part)
        casts_on_device = CASTS_MASTERS_ON_DEVICE <= job.version < COPIES_16_BIT_AGAIN
        if casts_on_device and not job.on_cpu:
            line.hold_briefly(categories.PASSING_MASTER, own * job.master_width)
        return
    # One gradient at a time, before anything is flattened.
    tested = overflow_bytes(job.version, job.effective.numerics)
    line.hold_briefly(categories.OVERFLOW_CHECK, tested * job.largest_trained)
    if partition.compact:
        line.free(categories.PARTITION)  # it is the fp32 gradient
        line.hold(categories.STEP_GRADIENT, own * job.master_width)
    else:
        width = gradient_width(job)
        line.hold(categories.FLAT_GRADIENT, own * width)
        if width != job.master_width:
            line.hold(categories.STEP_GRADIENT, own * job.master_width)
            line.free(categories.FLAT_GRADIENT)
    for part in gradients:
        line.free(part)
    free_buckets(line)
    temporaries = job.optimizer.temporaries(own, own, on_cpu=job.on_cpu)
    line.hold_briefly(TEMPORARIES, temporaries * job.master_width)
    line.free(categories.STEP_GRADIENT)
    line.free(categories.FLAT_GRADIENT)


def simulate_fp32_sums(job: Workload) -> Trace:
    """Replay BF16_Optimizer, stage 1 in bf16 with fp32 sums: unsharded 16-bit weights and fp32
    gradients."""
    line = Timeline(job.memory_budget)
    partition = Partition.largest(job)
    own, total = partition.elements, partition.total
    immediate = job.effective.numerics.immediate_grad_update
    line.hold(categories.WEIGHTS, (total + job.frozen_elements) * job.width)
    line.hold(CONSTANTS, job.weights.constant_bytes)
    line.hold_briefly(categories.FLAT_GRADIENT, total * job.width)
    line.hold(categories.MASTER, own * job.master_width)
    line.hold(categories.FULL_GRADIENTS, total * job.accumulation_width)
    line.enter(Phase.FORWARD)
    line.hold(MOMENTS, job.optimizer.state_bytes(own, job.state_width))
    if job.accumulation > 1 and not immediate:
        line.hold(categories.GRADIENTS, total * job.width)
    run_forward(job, line)
    line.enter(Phase.BACKWARD)
    added = immediate or line.held_bytes(categories.GRADIENTS) > 0
    run_backward_holding(job, line, categories.GRADIENTS, added=added)
    line.hold_briefly(categories.STAGING, total * job.communication_width)
    line.enter(Phase.STEP)
    temporaries = job.optimizer.temporaries(own, own, on_cpu=job.on_cpu)
    line.hold_briefly(TEMPORARIES, temporaries * job.master_width)
    line.free(categories.GRADIENTS)
    return line.trace()
