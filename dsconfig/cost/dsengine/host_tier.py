"""What one rank of dsengine keeps in host memory and on NVMe.

Master shards, gradients and moments of the tiles that are not on the device; no copy of the
weights. On NVMe the shards and moments of a tile are one file (``dsengine.tiers.nvme``); parameters
are memory-mapped files (``dsengine.tiers.mapped``).
"""

from dsconfig import tiles
from dsconfig.cost.categories import (
    OPTIMIZER,
    PARAMETERS,
    offloaded_gradients,
    offloaded_masters,
    offloaded_moments,
)
from dsconfig.cost.dsengine.sharding import (
    copied_bytes,
    host_share,
    shard_bytes,
)
from dsconfig.cost.estimate import Component, Phase
from dsconfig.cost.workload import Workload
from dsconfig.runtimes.effective import Offload, Tier

SHARDS = "per owned element: compute-dtype bytes, or 4 if the shard is the master and trained"


def created_masters(job: Workload) -> int:
    """Return the bytes of one rank created on the host while the model is still there: all master
    shards.

    Masters that are offloaded with their units exist for the device's tiles too.
    """
    if job.effective.zero.optimizer_tier is Tier.DEVICE:
        return 0
    return job.master_width * (job.owned if job.storage.masters_on_host else host_share(job)[1])


def on_nvme(job: Workload) -> list[Component]:
    zero = job.effective.zero
    found: list[Component] = []
    if zero.optimizer_tier is Tier.NVME:
        own = host_share(job)[1]
        found.append(offloaded_masters(own * job.master_width))
        found.append(offloaded_moments(job.optimizer.state_bytes(own, job.state_width)))
    if zero.offload_param is not None and zero.parameter_tier is Tier.NVME:
        filed = shard_bytes(job) - _kept(job, zero.offload_param)
        found.append(Component("weights", filed, PARAMETERS, SHARDS))
    return found


def optimizer_on_host(job: Workload, offload: Offload) -> list[Component]:
    own, pin = host_share(job)[1], offload.pin_memory
    state = job.optimizer.state_bytes(own, job.state_width)
    gradients = offloaded_gradients(own * job.master_width, pinned=pin)
    staging = _staging(job, own)
    if offload.tier is Tier.HOST:
        return [
            offloaded_masters(own * job.master_width, pinned=pin),
            gradients,
            offloaded_moments(state),
            *_copies(job, own),
            *staging,
        ]
    segments = 1 + state // max(1, job.master_width * own)
    tile = min(own, tiles.filed_tile_elements(job.effective.zero.sub_group_size, segments))
    count = tiles.buffers(offload.buffer_count, segments, -(-own // max(1, tile)))
    held = count * segments * tile * job.master_width
    formula = "bytes of a master weight per element of a tile, for its shards and each moment"
    buffers = Component("tile buffers", held, f"{OPTIMIZER}/buffer_count", formula)
    return [gradients, buffers, *staging]


def _copies(job: Workload, own: int) -> list[Component]:
    amount = copied_bytes(job, own)
    formula = "4 bytes per weight, gradient and 16-bit state of at most 2**20 elements"
    return [Component("fp32 copies", amount, OPTIMIZER, formula, (Phase.STEP,))] if amount else []


def _staging(job: Workload, own: int) -> list[Component]:
    """Return the buffers for gradients and weights, if shards and states are in different
    memories."""
    if job.on_cpu or job.effective.zero.offload_param is not None or not own:
        return []
    size, formula = tiles.PIECES * tiles.PIECE_BYTES, f"{tiles.PIECES} buffers of 32 MiB"
    return [Component("staging buffers", size, OPTIMIZER, formula, pinned=True)]


def parameters_on_host(job: Workload, offload: Offload) -> list[Component]:
    """Return shards and their gradients; and the states, which are stored next to the updated
    shards."""
    kept, trained = _kept(job, offload), job.owned * job.shard_width
    late = (Phase.BACKWARD, Phase.STEP)
    pin = offload.pin_memory and offload.tier is Tier.HOST
    found = [
        Component("weights", kept, PARAMETERS, SHARDS, pinned=pin),
        Component("gradient shards", trained, PARAMETERS, SHARDS, pinned=pin, phases=late),
    ]
    if job.effective.zero.offload_optimizer is None:
        state = job.optimizer.state_bytes(job.owned, job.state_width)
        found.append(offloaded_moments(state, PARAMETERS))
    return found


def _kept(job: Workload, offload: Offload) -> int:
    """Return the bytes of this rank's shards in host memory."""
    shards, held = job.held, shard_bytes(job)
    if offload.tier is Tier.HOST or shards <= offload.max_in_cpu:
        return held
    return held * offload.max_in_cpu // shards  # frozen and trained ones alternate
