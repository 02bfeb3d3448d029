"""BF16_Optimizer: stage 1 in bf16 with fp32 accumulation keeps every gradient in fp32."""

from dsconfig.cost.deepspeed import parts
from dsconfig.cost.deepspeed.partition import Partition
from dsconfig.cost.estimate import Phase
from dsconfig.cost.model_pass import run_backward, run_forward
from dsconfig.cost.timeline import Timeline, Trace
from dsconfig.cost.workload import Workload


def simulate(job: Workload) -> Trace:
    """One rank: 16-bit weights and fp32 gradients whole, master and moments divided."""
    line = Timeline()
    partition = Partition.largest(job)
    own, total = partition.elements, partition.total
    immediate = job.effective.numerics.immediate_grad_update
    line.hold(parts.WEIGHTS, (total + job.frozen_elements) * job.width)
    line.blink(parts.FLAT_GRADIENT, total * job.width)
    line.hold(parts.MASTER, own * 4)
    line.hold(parts.FULL_GRADIENTS, total * 4)
    line.enter(Phase.FORWARD)
    line.hold(parts.MOMENTS, job.optimizer.state_bytes(own))
    if job.accumulation > 1 and not immediate:
        line.hold(parts.GRADIENTS, total * job.width)
    run_forward(job, line)
    line.enter(Phase.BACKWARD)
    standing = line.held(parts.GRADIENTS) > 0

    def differentiate(_: int, indices: list[int]) -> None:
        for index in reversed(indices):
            weight = job.weights[index]
            if not weight.trainable:
                continue
            amount = weight.elements * job.width
            if immediate or standing:
                line.blink(parts.GRADIENTS, amount)
            else:
                line.hold(parts.GRADIENTS, amount)

    run_backward(job, line, differentiate)
    line.blink(parts.STAGING, total * job.communication_width)
    line.enter(Phase.STEP)
    line.blink(parts.TEMPORARIES, own * 4 * job.optimizer.temporaries)
    line.free(parts.GRADIENTS)
    return line.trace()
