"""What dsengine stores on the device between steps: decided once, for the plan of a run.

The engine does what the plan contains; the estimates of memory and time read the same decision.
"""

from dataclasses import dataclass

from dsconfig.mesh import Mesh
from dsconfig.runtimes.effective import Effective, Precision


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """Dtypes of shards and gradients, and where the masters are."""

    masters_on_host: bool
    """Whether an offloaded optimizer has the only masters, so that shards have the compute dtype.

    Gradients are then reduced in that dtype and accumulated on the host. Otherwise shards are the
    masters. With divided experts, whose shards are others' than the rest, they always are.
    """
    shard: Precision
    """Of a trained weight's shard. Frozen weights have no master: theirs has the compute dtype."""
    gradient: Precision
    """Of unsharded gradients until they are reduced.

    If a step reduces once, they are summed over its micro steps before: in the accumulation dtype
    if that is wider than the communication dtype, to which they are cast last.
    """


def storage_of(effective: Effective, mesh: Mesh) -> Storage:
    """Return the decision for a run with these settings and ranks."""
    numerics, zero = effective.numerics, effective.zero
    compute, wire = numerics.precision, numerics.communication_dtype
    sums, master = numerics.grad_accum_dtype, numerics.master_dtype
    on_host = (
        zero.stage > 0
        and zero.offload_optimizer is not None
        and mesh.expert == 1
        and master is not compute
        and wire is compute
    )
    is_summed_wider = not zero.reduces_every_pass and sums.bytes > wire.bytes
    return Storage(
        masters_on_host=on_host,
        shard=compute if on_host else master,
        gradient=sums if is_summed_wider else wire,
    )
