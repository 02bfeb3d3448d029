"""One rank of dsengine: creation, forward, backward, step."""

from dsconfig.memory.dsengine import parts
from dsconfig.memory.estimate import Phase
from dsconfig.memory.model_pass import run_backward, run_forward, stretches
from dsconfig.memory.timeline import Timeline, Trace
from dsconfig.memory.workload import Workload
from dsconfig.runtimes.effective import Tier


def simulate(job: Workload) -> Trace:
    """Replay the allocations of ``fully_shard`` at this stage."""
    line = Timeline()
    zero = job.effective.zero
    trainable = sum(weight.elements for weight in job.trainable)
    own = job.shard(trainable) if zero.stage else trainable
    frozen = job.shard(job.frozen_elements) if zero.stage else job.frozen_elements
    on_device = zero.optimizer_tier is Tier.DEVICE
    if on_device:
        line.hold(parts.MASTER, own * 4)
    line.hold(parts.MASTER, frozen * 4)
    whole = zero.stage < 3
    if whole and (job.mixed or zero.stage):
        line.hold(parts.WHOLE, job.elements * job.width)
    line.enter(Phase.FORWARD)
    if on_device:
        line.hold(parts.MOMENTS, job.optimizer.state_bytes(own))
    if job.accumulation > 1:
        _gradients_of_earlier_passes(job, line, own, trainable)
    largest = max(
        sum(job.weights[index].elements for index in indices)
        for _, indices in stretches(job.weights)
    )
    if not whole:
        line.hold(parts.GATHERED, 2 * largest * job.width)
        line.blink(parts.GATHER_BUFFER, largest * job.width)
    run_forward(job, line)
    line.enter(Phase.BACKWARD)
    deferred = zero.stage == 1 and job.accumulation > 1
    first = job.accumulation == 1

    def differentiate(_: int, indices: list[int]) -> None:
        unit = sum(job.weights[i].elements for i in indices if job.weights[i].trainable)
        if not unit:
            return
        if not deferred:
            line.hold(parts.UNIT_GRADIENTS, unit * job.width)
        line.hold(parts.REDUCE_INPUT, unit * job.communication_width)
        if deferred:
            line.free(parts.WHOLE_GRADIENTS, unit * job.width)
        line.free(parts.UNIT_GRADIENTS)
        shard = job.shard(unit) if zero.stage else unit
        if first or deferred:
            line.hold(parts.GRADIENTS, shard * 4 if on_device else 0)
        line.free(parts.REDUCE_INPUT)

    run_backward(job, line, differentiate)
    line.free(parts.GATHERED)
    line.enter(Phase.STEP)
    if on_device:
        line.blink(parts.TEMPORARIES, own * 4 * job.optimizer.temporaries)
    if whole and zero.stage:
        line.blink(parts.GATHER_BUFFER, largest * job.width)
    line.free(parts.GRADIENTS)
    return line.trace()


def _gradients_of_earlier_passes(job: Workload, line: Timeline, own: int, trainable: int) -> None:
    if job.effective.zero.stage == 1:
        line.hold(parts.WHOLE_GRADIENTS, trainable * job.width)
    else:
        line.hold(parts.GRADIENTS, own * 4)
