"""Stage 3: weights divided, gathered around their use."""

from dsconfig.memory.deepspeed import parts
from dsconfig.memory.estimate import Phase
from dsconfig.memory.model_pass import run_backward, run_forward
from dsconfig.memory.timeline import Timeline, Trace
from dsconfig.memory.workload import Workload
from dsconfig.runtimes.effective import Tier


def simulate(job: Workload) -> Trace:
    line = Timeline()
    zero = job.effective.zero
    width = job.width
    shards = sum(job.shard(weight.elements) for weight in job.weights)
    own = sum(job.shard(weight.elements) for weight in job.trainable)
    group = min(own, zero.sub_group_size)
    on_device = zero.optimizer_tier is Tier.DEVICE
    line.hold(parts.WEIGHTS, shards * width if zero.parameter_tier is Tier.DEVICE else 0)
    line.hold(parts.BUCKET, zero.reduce_bucket_size * job.communication_width)
    if on_device:
        line.hold(parts.PARTITION, own * job.accumulation_width)
        line.hold(parts.MASTER, own * 4)
        line.blink(parts.ZERO_GRADIENT, group * 4)
    line.enter(Phase.FORWARD)
    if on_device:
        line.hold(parts.MOMENTS, job.optimizer.state_bytes(own))
    live = min(job.elements, zero.max_reuse_distance // 2 + zero.prefetch_bucket_size)
    line.hold(parts.GATHERED, live * width)
    line.blink(parts.GATHER_COPY, min(job.elements, zero.prefetch_bucket_size + 1) * width)
    run_forward(job, line)
    line.enter(Phase.BACKWARD)
    line.hold(parts.STAGING, min(zero.reduce_bucket_size, job.elements) * job.communication_width)
    run_backward(job, line, lambda _, __: None)
    line.free(parts.STAGING)
    line.free(parts.GATHERED)
    line.enter(Phase.STEP)
    if on_device:
        line.hold(parts.STEP_GRADIENT, group * 4)
        line.blink(parts.TEMPORARIES, group * 4 * job.optimizer.temporaries)
        line.free(parts.STEP_GRADIENT)
    return line.trace()
