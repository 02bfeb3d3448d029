"""Stage 0: nothing is sharded."""

from dsconfig.cost.categories import CONSTANTS, MOMENTS, TEMPORARIES
from dsconfig.cost.deepspeed import categories
from dsconfig.cost.estimate import Phase
from dsconfig.cost.optimizers import muon_bytes
from dsconfig.cost.timeline import Timeline, Trace, run_backward_holding, run_forward
from dsconfig.cost.workload import Workload

ALL_REDUCE_ELEMENTS = 500_000_000
"""Fixed in DeepSpeed's engine; reduce_bucket_size is not used at stage 0."""


def simulate(job: Workload) -> Trace:
    """Replay one rank through creation, forward, backward and step."""
    line = Timeline(job.memory_budget)
    owned = job.trained
    _create(job, line, owned)
    line.enter(Phase.FORWARD)
    if job.accumulation > 1:
        line.hold(categories.GRADIENTS, owned * job.width)
    run_forward(job, line)
    line.enter(Phase.BACKWARD)
    run_backward_holding(
        job, line, categories.GRADIENTS, added=line.held_bytes(categories.GRADIENTS) > 0
    )
    together = min(owned, ALL_REDUCE_ELEMENTS)
    line.hold(categories.STAGING, together * job.width)
    if job.communication_width != job.width:
        line.hold_briefly(categories.CAST, together * job.communication_width)
    line.free(categories.STAGING)
    line.enter(Phase.STEP)
    _step(job, line, owned)
    return line.trace()


def _create(job: Workload, line: Timeline, owned: int) -> None:
    width = job.width
    line.hold(categories.WEIGHTS, job.elements * width)
    line.hold(CONSTANTS, job.weights.constant_bytes)
    state = job.optimizer.state_bytes(owned, job.state_width)
    if not job.mixed:
        line.enter(Phase.FORWARD)
        line.hold(MOMENTS, state)
        return
    line.hold_briefly(categories.FLAT_GRADIENT, owned * width)
    line.hold(categories.MASTER, owned * job.master_width)
    line.hold(categories.ZERO_GRADIENT, owned * job.master_width)
    largest = job.largest_trained
    temporaries = job.optimizer.temporaries(owned, largest, on_cpu=job.on_cpu)
    if not job.optimizer.fused:
        # Tensor by tensor: a 16-bit zero gradient in addition to the fp32 one.
        line.hold(categories.FLAT_GRADIENT, owned * width)
    line.hold(MOMENTS, state)
    if not job.optimizer.fused:
        line.hold_briefly(TEMPORARIES, job.master_width * (temporaries + largest))
    line.free(categories.FLAT_GRADIENT)
    line.free(categories.ZERO_GRADIENT)


def _step(job: Workload, line: Timeline, owned: int) -> None:
    largest = job.largest_trained
    temporaries = job.optimizer.temporaries(owned, largest, on_cpu=job.on_cpu)
    line.hold_briefly(categories.ORTHOGONALIZED, muon_bytes(job, 4))
    if not job.mixed:
        line.hold_briefly(TEMPORARIES, temporaries * job.master_width)
    elif job.optimizer.fused:
        # A list of fp32 copies is flattened while the 16-bit gradients still exist.
        line.hold(categories.STEP_GRADIENT, owned * job.master_width)
        line.hold(categories.FLAT_GRADIENT, owned * job.master_width)
        line.free(categories.FLAT_GRADIENT)
        line.free(categories.STEP_GRADIENT)
    else:
        line.hold(categories.STEP_GRADIENT, owned * job.master_width)
        line.hold_briefly(TEMPORARIES, job.master_width * (temporaries + largest))
        line.free(categories.STEP_GRADIENT)
    line.free(categories.GRADIENTS)
