"""Stage 0: DistributedDataParallel with gradients as views of its buckets."""

from dsconfig.cost.dsengine import parts
from dsconfig.cost.dsengine.collectives import broadcast_bytes
from dsconfig.cost.estimate import Phase
from dsconfig.cost.optimizers import temporary_bytes
from dsconfig.cost.parts import MOMENTS, TEMPORARIES
from dsconfig.cost.timeline import Timeline, Trace, run_backward, run_forward, trained_backwards
from dsconfig.cost.workload import Workload

MASTER_WIDTH = 4


def simulate(job: Workload) -> Trace:
    """Every rank holds everything; in mixed precision an fp32 master of what is trained."""
    line = Timeline(job.room)
    trained = job.trained
    last = job.trainable[-1].elements if job.trainable else 0
    _create(job, line, trained)
    if not job.optimizer.eager:
        line.enter(Phase.FORWARD)
    line.hold(MOMENTS, job.optimizer.state_bytes(trained))
    line.enter(Phase.FORWARD)
    sums = _width_of_sums(job)
    if job.accumulation > 1:
        line.hold(parts.KEPT_GRADIENTS, trained * job.width)
        line.hold(parts.SUMS, trained * sums)
    run_forward(job, line)
    line.enter(Phase.BACKWARD)

    def differentiate(_: int, indices: list[int]) -> None:
        for index in trained_backwards(job, indices):
            amount = job.weights[index].elements * job.width
            line.blink(parts.GRADIENTS, amount)
            if job.ranks == 1 and job.accumulation == 1:
                line.hold(parts.KEPT_GRADIENTS, amount)
            elif job.accumulation > 1 and job.ranks > 1:
                line.free(parts.KEPT_GRADIENTS, amount)  # from here on a view of the bucket
            if job.accumulation == 1:
                line.hold(parts.SUMS, job.weights[index].elements * sums)

    run_backward(job, line, differentiate)
    line.enter(Phase.STEP)
    if sums:
        line.free(parts.KEPT_GRADIENTS)
    if job.mixed and sums != MASTER_WIDTH:
        if job.ranks == 1 and not sums:  # views of no bucket: each goes once it has been cast
            line.free(parts.KEPT_GRADIENTS, (trained - last) * job.width)
        line.hold(parts.STEP_GRADIENT, trained * MASTER_WIDTH)
        line.free(parts.KEPT_GRADIENTS)
        line.free(parts.SUMS)
    line.blink(TEMPORARIES, temporary_bytes(job, trained, lambda whole: whole))
    line.free(parts.STEP_GRADIENT)
    line.free(parts.SUMS)
    line.free(parts.KEPT_GRADIENTS)
    return line.trace()


def _width_of_sums(job: Workload) -> int:
    """Bytes per element of sums apart from the model's gradients; 0 where those are the sums."""
    numerics = job.effective.numerics
    return job.accumulation_width if numerics.grad_accum_dtype is not numerics.precision else 0


def _create(job: Workload, line: Timeline, trained: int) -> None:
    line.hold(parts.BUILT, (job.elements if job.on_cpu else trained) * 4)
    line.hold(parts.WHOLE, job.frozen_elements * job.width)  # cast on its way
    line.free(parts.BUILT, job.frozen_elements * 4 if job.on_cpu else 0)
    if job.ranks > 1:
        line.blink(parts.BROADCAST, broadcast_bytes(job, job.weights))
    if not job.mixed:
        line.free(parts.BUILT)  # the same tensors from here on
    line.hold(parts.MASTER, trained * MASTER_WIDTH)
    if job.mixed and job.trainable:
        first = job.trainable[0].elements * job.width
        line.blink(parts.WHOLE, first)  # cast one by one, each fp32 original then goes
    line.free(parts.BUILT)
    if job.mixed:
        line.hold(parts.WHOLE, trained * job.width)
    if job.ranks > 1:
        line.hold(parts.BUCKETS, trained * job.width)
