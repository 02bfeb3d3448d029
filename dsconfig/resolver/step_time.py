"""Expected seconds of one optimizer step, good enough to order stages and offload targets.

Compute is the same for all of them, so only what differs is counted: communication, optimizer
updates, and traffic to host and NVMe. Bytes over bandwidth, nothing overlapped.
"""

from dataclasses import dataclass

from dsconfig.facts import Facts
from dsconfig.runtimes.effective import Tier

# Where a device's data sheet is silent or not known: GB/s in one direction.
LINK = 25.0
"""Between nodes (a 200 Gbit/s adapter per device), and where the link is unknown."""
MEMORY = 1000.0
PCIE = 16.0
HOST_MEMORY = 200.0
"""Main memory of one node, shared by its ranks."""
NVME = 6.0
"""One node's disks together."""
UPDATE_BYTES = 28
"""Adam reads gradient, master weight and two moments, writes all but the gradient (fp32)."""


@dataclass(frozen=True, slots=True)
class Rates:
    """GB/s per rank in one direction."""

    link: float
    memory: float
    pcie: float
    host: float
    nvme: float


def rates(facts: Facts) -> Rates:
    device = facts.device
    link = (device.link_gb_per_second if device else None) or LINK
    nodes = facts.nodes or 1
    ranks_of_node = max(1, (facts.world_size or 1) // nodes)
    return Rates(
        link=min(link, LINK) if nodes > 1 else link,
        memory=(device.memory_gb_per_second if device else None) or MEMORY,
        pcie=(device.pcie_gb_per_second if device else None) or PCIE,
        host=HOST_MEMORY / ranks_of_node,
        nvme=NVME / ranks_of_node,
    )


def seconds(
    facts: Facts, stage: int, optimizer: Tier, parameters: Tier, *, width: int, accumulation: int
) -> float:
    """What a step costs beyond compute. ``width`` is bytes per element of weights."""
    speed = rates(facts)
    ranks = facts.data_parallel or 1
    elements = facts.model.trainable if facts.model else 0
    weights = elements * width
    shard = elements / (ranks if stage >= 1 else 1)
    passed = _communication(stage, accumulation) * weights * (ranks - 1) / ranks / speed.link
    updated = shard * UPDATE_BYTES / (speed.memory if optimizer is Tier.DEVICE else speed.host)
    moved = 0.0
    if optimizer is not Tier.DEVICE:
        # Gradients go down on every micro step, updated weights come back once.
        moved += shard * width * (accumulation + 1) / speed.pcie
    if optimizer is Tier.NVME:
        moved += 2 * shard * 12 / speed.nvme
    if parameters is not Tier.DEVICE:
        read = 2 * accumulation * shard * width
        moved += read / speed.pcie + (read / speed.nvme if parameters is Tier.NVME else 0)
    return (passed + updated + moved) / 1e9


def _communication(stage: int, accumulation: int) -> int:
    """How often the whole model passes over the links in a step."""
    if stage <= 1:
        return 2
    return accumulation + 1 if stage == 2 else 3 * accumulation
