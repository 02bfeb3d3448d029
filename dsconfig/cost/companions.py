"""Memory of what runs beside the model that is trained: frozen copies and an inference engine.

A frozen copy, such as the reference model of DPO, is kept like the 16-bit weights: at stage 3
divided over the ranks, and offloaded with the parameters (``prepare_deepspeed`` of TRL 1.16). An
inference engine on the same GPUs (vLLM) takes its share of the memory before training starts.
"""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from dsconfig.cost.categories import PARAMETERS, STAGE
from dsconfig.cost.estimate import Component, DeviceMemory, Phase, TierMemory
from dsconfig.cost.workload import Workload
from dsconfig.facts.facts import Facts
from dsconfig.runtimes.effective import Tier

COPIES, ENGINE = "frozen copies", "inference engine"
FORMULA = "compute-dtype bytes per element; divided by the ranks at stage 3"


def on_device(memory: DeviceMemory, job: Workload, facts: Facts) -> DeviceMemory:
    """Return the memory of a rank's device with what runs beside the model."""
    phases = tuple(memory.phase_bytes)
    engine = int(facts.companions.inference_share * (facts.device_bytes or 0))
    copies = _copies(job, facts) if _tier(job) is Tier.DEVICE else 0
    added = (
        Component(COPIES, copies, STAGE, FORMULA, phases),
        Component(ENGINE, engine, "", "share of the GPU's memory", phases),
    )
    added = tuple(part for part in added if part.bytes)
    more = sum(part.bytes for part in added)
    if not more:
        return memory
    return replace(
        memory,
        components=(*memory.components, *added),
        phase_bytes=_raised(memory.phase_bytes, more),
        end_bytes=_raised(memory.end_bytes, more),
        peak_bytes=memory.peak_bytes + more,
        reserved_bytes=memory.reserved_bytes + more,
        visible_bytes=memory.visible_bytes + more,
        needed_bytes=memory.needed_bytes + more,
        least_needed_bytes=memory.least_needed_bytes + more,
        most_needed_bytes=memory.most_needed_bytes + more,
        low_bytes=None if memory.low_bytes is None else memory.low_bytes + more,
        high_bytes=None if memory.high_bytes is None else memory.high_bytes + more,
    )


def in_tier(memory: TierMemory, tier: Tier, job: Workload, facts: Facts) -> TierMemory:
    """Return the memory of a node's host, or its NVMe, with the copies that are offloaded to it."""
    more = _copies(job, facts) * job.ranks_per_node if _tier(job) is tier else 0
    if not more:
        return memory
    formula = f"{FORMULA}, {job.ranks_per_node} ranks"
    return replace(
        memory,
        components=(*memory.components, Component(COPIES, more, PARAMETERS, formula)),
        bytes=memory.bytes + more,
        peak_bytes=memory.peak_bytes + more,
    )


def _copies(job: Workload, facts: Facts) -> int:
    held = job.held if job.effective.zero.stage == 3 else job.elements
    return facts.companions.frozen_copies * held * job.width


def _tier(job: Workload) -> Tier:
    """Return where parameters are kept."""
    zero = job.effective.zero
    return zero.parameter_tier if zero.stage == 3 else Tier.DEVICE


def _raised(values: Mapping[Phase, int], more: int) -> Mapping[Phase, int]:
    return MappingProxyType({phase: count + more for phase, count in values.items()})
