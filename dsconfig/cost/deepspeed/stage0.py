"""Stage 0: every rank holds everything."""

from dsconfig.cost.deepspeed import parts
from dsconfig.cost.estimate import Phase
from dsconfig.cost.optimizers import muon_bytes
from dsconfig.cost.parts import MOMENTS, TEMPORARIES
from dsconfig.cost.timeline import Timeline, Trace, run_backward_holding, run_forward
from dsconfig.cost.workload import Workload

ALL_REDUCE_ELEMENTS = 500_000_000
"""Fixed in DeepSpeed's engine; reduce_bucket_size is not used at stage 0."""


def simulate(job: Workload) -> Trace:
    """One rank through creation, forward, backward and step."""
    line = Timeline(job.room)
    owned = job.trained
    _create(job, line, owned)
    line.enter(Phase.FORWARD)
    if job.accumulation > 1:
        line.hold(parts.GRADIENTS, owned * job.width)
    run_forward(job, line)
    line.enter(Phase.BACKWARD)
    run_backward_holding(job, line, parts.GRADIENTS, added=line.held(parts.GRADIENTS) > 0)
    together = min(owned, ALL_REDUCE_ELEMENTS)
    line.hold(parts.STAGING, together * job.width)
    if job.communication_width != job.width:
        line.blink(parts.CAST, together * job.communication_width)
    line.free(parts.STAGING)
    line.enter(Phase.STEP)
    _step(job, line, owned)
    return line.trace()


def _create(job: Workload, line: Timeline, owned: int) -> None:
    width = job.width
    line.hold(parts.WEIGHTS, job.elements * width)
    state = job.optimizer.state_bytes(owned, job.state_width)
    if not job.mixed:
        line.enter(Phase.FORWARD)
        line.hold(MOMENTS, state)
        return
    line.blink(parts.FLAT_GRADIENT, owned * width)
    line.hold(parts.MASTER, owned * 4)
    line.hold(parts.ZERO_GRADIENT, owned * 4)
    largest = job.largest_trained
    temporaries = job.optimizer.temporaries(owned, largest, on_cpu=job.on_cpu)
    if not job.optimizer.fused:
        # Tensor by tensor: a 16-bit zero gradient beside the fp32 one.
        line.hold(parts.FLAT_GRADIENT, owned * width)
    line.hold(MOMENTS, state)
    if not job.optimizer.fused:
        line.blink(TEMPORARIES, 4 * (temporaries + largest))
    line.free(parts.FLAT_GRADIENT)
    line.free(parts.ZERO_GRADIENT)


def _step(job: Workload, line: Timeline, owned: int) -> None:
    largest = job.largest_trained
    temporaries = job.optimizer.temporaries(owned, largest, on_cpu=job.on_cpu)
    line.blink(parts.ORTHOGONALIZED, muon_bytes(job, 4))
    if not job.mixed:
        line.blink(TEMPORARIES, temporaries * 4)
    elif job.optimizer.fused:
        # A list of fp32 copies is flattened while the 16-bit gradients are still there.
        line.hold(parts.STEP_GRADIENT, owned * 4)
        line.hold(parts.FLAT_GRADIENT, owned * 4)
        line.free(parts.FLAT_GRADIENT)
        line.free(parts.STEP_GRADIENT)
    else:
        line.hold(parts.STEP_GRADIENT, owned * 4)
        line.blink(TEMPORARIES, 4 * (temporaries + largest))
        line.free(parts.STEP_GRADIENT)
    line.free(parts.GRADIENTS)
