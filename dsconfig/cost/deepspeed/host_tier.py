"""What one rank of DeepSpeed keeps in host memory and on NVMe for offloaded states."""

from dsconfig.cost import categories
from dsconfig.cost.deepspeed import stage12
from dsconfig.cost.deepspeed.buckets import Partition
from dsconfig.cost.deepspeed.coordinator import persistent_weights
from dsconfig.cost.estimate import Component, Phase
from dsconfig.cost.hardware import pinned
from dsconfig.cost.workload import Workload
from dsconfig.report.sizes import MIB
from dsconfig.runtimes.effective import Offload, Tier
from dsconfig.runtimes.settings import default_of
from dsconfig.schema.paths import AIO
from dsconfig.source.pointer import value_at


def flattened(job: Workload) -> Component:
    """Return the weights of a rank and their flat copy, if stages 1 and 2 flatten
    in host memory."""
    passes = job.effective.zero.stage in (1, 2) and not stage12.flattens_on_device(job)
    amount = 2 * job.trained * job.width if passes else 0
    formula = "compute-dtype bytes per trainable element, twice, while they are flattened"
    return Component("weights being flattened", amount, categories.STAGE, formula, (Phase.INIT,))


def on_nvme(job: Workload) -> list[Component]:
    zero, own = job.effective.zero, job.owned
    found: list[Component] = []
    if zero.optimizer_tier is Tier.NVME and is_swapped(job):
        found.append(categories.offloaded_masters(own * job.master_width))
        found.append(categories.offloaded_moments(job.optimizer.state_bytes(own, job.state_width)))
        found.append(categories.offloaded_gradients(own * job.master_width))
    if zero.parameter_tier is Tier.NVME:
        amount = job.held * job.width
        found.append(
            Component(
                "weights", amount, categories.PARAMETERS, "compute-dtype bytes per owned element"
            )
        )
    return found


def is_swapped(job: Workload) -> bool:
    """Return whether the optimizer's sub-groups are written out: those below 1 MiB are kept.

    ``min_aio_bytes`` in its swap_tensor/optimizer_utils.py: the larger of 1 MiB and block_size.
    """
    path = AIO / "block_size"
    block = int(value_at(job.effective.config, path, default_of(path)))
    group = min(job.owned, job.effective.zero.sub_group_size)
    return group * job.master_width >= max(MIB, block)


def optimizer_on_host(job: Workload, offload: Offload) -> list[Component]:
    """Return master, gradient, 16-bit staging and moments; a pool before NVMe."""
    if offload.tier is Tier.NVME:
        return [*_unswapped(job, offload.pin_memory), *_pool(job, offload)]
    zero, own, pin = job.effective.zero, job.owned, offload.pin_memory
    share, width = int(own * offload.ratio), job.master_width
    state = job.optimizer.state_bytes(share, job.state_width)
    # Gradients are accumulated here, in full for parameters that touch the partition.
    sums = zero.stage < 3 and job.accumulation > 1
    summed = Partition.largest(job).touched * job.width if sums else 0
    # Stage 3 page-locks the gradient of each sub-group separately, and no masters; below it both.
    by_group = min(own, zero.sub_group_size) * width if zero.stage == 3 else None
    pins_masters, master, staging = pin and zero.stage < 3, share * width, own * job.width
    found = [
        Component(
            "accumulated gradients",
            summed,
            categories.ACCUMULATION,
            "compute-dtype bytes per touched element",
            pinned=pin,
        ),
        categories.offloaded_masters(master, pinned=pins_masters),
        categories.offloaded_gradients(master, pinned=pin, piece=by_group),
        Component(
            "16-bit staging",
            staging,
            categories.OPTIMIZER,
            "compute-dtype bytes per owned element",
            pinned=pin,
        ),
        categories.offloaded_moments(state),
    ]
    return [each for each in found if each.bytes]


def _unswapped(job: Workload, pin: bool) -> list[Component]:
    """Return what stays in host memory besides the pool: fp32 gradients, and
    sub-groups too small."""
    own, formula = job.owned, f"{categories.PER_OWNED}, until the step"
    each = min(own, job.effective.zero.sub_group_size) * job.master_width
    kept = [
        Component(
            "gradients",
            own * job.master_width,
            categories.OPTIMIZER,
            formula,
            pinned=pin,
            piece=each,
        )
    ]
    if not is_swapped(job):
        state = job.optimizer.state_bytes(own, job.state_width)
        small = "sub-groups below 1 MiB are not swapped"
        group = f"{categories.ZERO}/sub_group_size"
        kept.append(Component(categories.MASTERS, own * job.master_width, group, small, pinned=pin))
        kept.append(Component(categories.MOMENTS.name, state, group, small))
    return kept


def _pool(job: Workload, offload: Offload) -> list[Component]:
    own, pin, count_key = job.owned, offload.pin_memory, f"{categories.OPTIMIZER}/buffer_count"
    each = min(own, job.effective.zero.sub_group_size) * job.master_width
    count = offload.buffer_count * (2 if offload.pipeline_read or offload.pipeline_write else 1)
    formula = "buffer_count x largest sub-group x 4 bytes"
    return [
        Component(
            "gradient shards",
            own * job.width,
            categories.OPTIMIZER,
            "compute-dtype bytes per owned element",
            pinned=pin,
        ),
        Component("swap buffers", count * each, count_key, formula, pinned=True, piece=each),
    ]


def _initial_shards(job: Workload, offload: Offload) -> list[Component]:
    """Return the page-locked shards that zero.Init makes one by one, also of a model that was built
    without it (``_partition_param`` of 0.19.8).

    They are copied to the flat buffer and freed, but torch keeps freed page-locked blocks for
    requests of the same size, and none follows (``CachingHostAllocator``).
    """
    if not offload.pin_memory or job.on_cpu:
        return []
    kept = persistent_weights(job.weights, job.effective.zero)
    blocks = [
        pinned(job.shard_of(weight) * job.width)
        for index, weight in enumerate(job.weights)
        if index not in kept
    ]
    formula = "compute-dtype bytes of each shard, to the next power of two: freed, not returned"
    pointer = f"{categories.PARAMETERS}/pin_memory"
    each = min(blocks, default=0)
    return [Component("shards as built", sum(blocks), pointer, formula, pinned=True, piece=each)]


def parameters_on_host(job: Workload, offload: Offload) -> list[Component]:
    shards = job.held
    if offload.tier is Tier.HOST:
        amount, formula = shards * job.width, "compute-dtype bytes per owned element"
        # Flattened in page-locked memory, whatever ``pin_memory`` is.
        flat = Component("weights", amount, categories.PARAMETERS, formula, pinned=True)
        return [flat, *_initial_shards(job, offload)]
    pool = offload.buffer_count * offload.buffer_size * job.width
    kept = min(shards, offload.max_in_cpu) * job.width
    formula = "buffer_count x buffer_size x compute-dtype bytes"
    return [
        Component(
            "swap buffers", pool, f"{categories.PARAMETERS}/buffer_size", formula, pinned=True
        ),
        Component(
            "weights kept",
            kept,
            f"{categories.PARAMETERS}/max_in_cpu",
            "max_in_cpu x compute-dtype bytes",
        ),
    ]
