"""How dsengine divides an offloaded optimizer between device and host."""

from dsconfig.cost.dsengine.groups import padded
from dsconfig.cost.workload import Workload


def tiles(job: Workload) -> tuple[list[int], list[int]]:
    """Elements of this rank's tiles: (on the device, on the host or on NVMe).

    A tile is whole parameters in order, up to sub_group_size; it is updated at once. The first
    ``1 - ratio`` of them stay on the device.
    """
    zero = job.effective.zero
    sizes: list[int] = []
    for weight in job.trainable:
        part = padded(weight, job.ranks) // job.ranks
        if sizes and sizes[-1] + part <= zero.sub_group_size:
            sizes[-1] += part
        else:
            sizes.append(part)
    ratio = zero.offload_optimizer.ratio if zero.offload_optimizer is not None else 0.0
    stay = int(len(sizes) * (1.0 - ratio))
    return sizes[:stay], sizes[stay:]


def moves_masters(job: Workload) -> bool:
    """Whether offloaded fp32 masters leave 16-bit shards in their place on the device.

    Only where gradients need no more than that: sums and wire of the model's own 16 bits.
    """
    return job.mixed and job.width == job.communication_width == job.accumulation_width
