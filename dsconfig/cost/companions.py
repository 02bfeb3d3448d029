"""Memory of what runs beside the model that is trained: frozen copies and an inference engine.

A frozen copy, such as the reference model of DPO, is kept like the weights of the model itself: at
stage 3 divided over the ranks, and offloaded with them (``prepare_deepspeed`` of TRL 1.16). An
inference engine on the same GPUs (vLLM) takes its share of the memory before training starts.
"""

from dataclasses import replace
from types import MappingProxyType

from dsconfig.cost.estimate import Component, DeviceMemory, Phase, TierMemory
from dsconfig.facts.facts import Facts

COPIES, ENGINE, WEIGHTS = "frozen copies", "inference engine", "weights"


def on_device(memory: DeviceMemory, facts: Facts) -> DeviceMemory:
    """Return the memory of a rank's device with what runs beside the model."""
    beside, phases = facts.companions, tuple(memory.phase_bytes)
    weights = max((part.bytes for part in memory.components if part.name == WEIGHTS), default=0)
    engine = int(beside.inference_share * (facts.device_bytes or 0))
    added = (
        Component(COPIES, beside.frozen_copies * weights, "", "as the weights", phases),
        Component(ENGINE, engine, "", "share of the GPU's memory", phases),
    )
    added = tuple(part for part in added if part.bytes)
    more = sum(part.bytes for part in added)
    if not more:
        return memory

    def raised(values: "MappingProxyType[Phase, int]") -> "MappingProxyType[Phase, int]":
        return MappingProxyType({phase: count + more for phase, count in values.items()})

    return replace(
        memory,
        components=(*memory.components, *added),
        phase_bytes=raised(MappingProxyType(dict(memory.phase_bytes))),
        end_bytes=raised(MappingProxyType(dict(memory.end_bytes))),
        peak_bytes=memory.peak_bytes + more,
        reserved_bytes=memory.reserved_bytes + more,
        visible_bytes=memory.visible_bytes + more,
        needed_bytes=memory.needed_bytes + more,
        least_needed_bytes=memory.least_needed_bytes + more,
        most_needed_bytes=memory.most_needed_bytes + more,
        low_bytes=None if memory.low_bytes is None else memory.low_bytes + more,
        high_bytes=None if memory.high_bytes is None else memory.high_bytes + more,
    )


def on_host(memory: TierMemory, facts: Facts) -> TierMemory:
    """Return host memory, or NVMe, with the offloaded weights of frozen copies."""
    weights = next((part for part in memory.components if part.name == WEIGHTS), None)
    if weights is None or not facts.companions.frozen_copies:
        return memory
    more = facts.companions.frozen_copies * weights.bytes
    copies = replace(weights, name=COPIES, bytes=more, formula="as the weights")
    return replace(
        memory,
        components=(*memory.components, copies),
        bytes=memory.bytes + more,
        peak_bytes=memory.peak_bytes + more,
        pinned_bytes=memory.pinned_bytes + (more if weights.pinned else 0),
    )
