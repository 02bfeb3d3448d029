"""Stage 0: DistributedDataParallel with gradients as views of its buckets."""

from dsconfig.cost.categories import CONSTANTS, MOMENTS, TEMPORARIES
from dsconfig.cost.dsengine import categories
from dsconfig.cost.dsengine.collectives import broadcast_bytes
from dsconfig.cost.estimate import Phase
from dsconfig.cost.optimizers import temporary_bytes
from dsconfig.cost.timeline import Timeline, Trace, run_backward, run_forward, trained_backwards
from dsconfig.cost.workload import Workload


def simulate(job: Workload) -> Trace:
    """Replay stage 0: nothing is sharded; in mixed precision an fp32 master of the
    trained weights."""
    line = Timeline(job.memory_budget)
    trained = job.trained
    last = job.trainable[-1].elements if job.trainable else 0
    _create(job, line, trained)
    if not job.optimizer.eager:
        line.enter(Phase.FORWARD)
    line.hold(MOMENTS, job.optimizer.state_bytes(trained, job.state_width))
    line.enter(Phase.FORWARD)
    sums = _width_of_sums(job)
    if job.accumulation > 1:
        line.hold(categories.KEPT_GRADIENTS, trained * job.width)
        line.hold(categories.SUMS, trained * sums)
    run_forward(job, line)
    line.enter(Phase.BACKWARD)

    def differentiate(_: int, indices: list[int]) -> None:
        for index in trained_backwards(job, indices):
            amount = job.weights[index].elements * job.width
            line.hold_briefly(categories.GRADIENTS, amount)
            if job.mesh.gradient_ranks == 1 and job.accumulation == 1:
                line.hold(categories.KEPT_GRADIENTS, amount)
            elif job.accumulation > 1 and job.mesh.gradient_ranks > 1:
                line.free(categories.KEPT_GRADIENTS, amount)  # now a view of the bucket
            if job.accumulation == 1:
                line.hold(categories.SUMS, job.weights[index].elements * sums)

    run_backward(job, line, differentiate)
    line.enter(Phase.STEP)
    if sums:
        line.free(categories.KEPT_GRADIENTS)
    if _has_copy(job) and sums != job.master_width:
        if (
            job.mesh.gradient_ranks == 1 and not sums
        ):  # not views of a bucket: each is freed after its cast
            line.free(categories.KEPT_GRADIENTS, (trained - last) * job.width)
        line.hold(categories.STEP_GRADIENT, trained * job.master_width)
        line.free(categories.KEPT_GRADIENTS)
        line.free(categories.SUMS)
    line.hold_briefly(TEMPORARIES, temporary_bytes(job, trained, lambda elements: elements))
    line.free(categories.STEP_GRADIENT)
    line.free(categories.SUMS)
    line.free(categories.KEPT_GRADIENTS)
    return line.trace()


def _width_of_sums(job: Workload) -> int:
    """Return the bytes per element of sums separate from the model's gradients; 0 if those are the
    sums."""
    numerics = job.effective.numerics
    return job.accumulation_width if numerics.grad_accum_dtype is not numerics.precision else 0


def _has_copy(job: Workload) -> bool:
    """Return whether the optimizer updates a copy of the weights."""
    return job.mixed and job.copies_masters


def _create(job: Workload, line: Timeline, trained: int) -> None:
    line.hold(categories.BUILT, (job.elements if job.on_cpu else trained) * job.master_width)
    line.hold(categories.UNSHARDED, job.frozen_elements * job.width)  # cast while copied
    line.hold(CONSTANTS, job.weights.constant_bytes)
    line.free(categories.BUILT, job.frozen_elements * job.master_width if job.on_cpu else 0)
    if job.mesh.gradient_ranks > 1:
        line.hold_briefly(categories.BROADCAST, broadcast_bytes(job, job.weights))
    if not _has_copy(job):
        line.free(categories.BUILT)  # the same tensors
    line.hold(categories.master(job), trained * job.master_width)
    if _has_copy(job) and job.trainable:
        # Weights are cast one by one, freeing each fp32 original.
        line.hold_briefly(categories.UNSHARDED, job.trainable[0].elements * job.width)
    line.free(categories.BUILT)
    if _has_copy(job):
        line.hold(categories.UNSHARDED, trained * job.width)
    if job.mesh.gradient_ranks > 1:
        line.hold(categories.BUCKETS, trained * job.width)
