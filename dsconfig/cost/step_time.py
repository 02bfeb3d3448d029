"""A model of the time of one step: to rank configs, not to promise tokens per second.

Compute is FLOPs over the card's dense rate times a usual efficiency; communication is bytes
over links; offload is bytes over PCIe and NVMe and the host's Adam. With overlap only what
sticks out of backward counts.
"""

from dataclasses import dataclass

from dsconfig.cost.activations import recompute_of
from dsconfig.cost.choices import choice_of
from dsconfig.facts import DeviceFacts, Facts
from dsconfig.runtimes.effective import Effective, Tier

EFFICIENCY = 0.45
"""Model FLOPs utilisation of a tuned dense decoder on one node; 0.38 to 0.50 are published."""
SMALL_BATCH_TOKENS = 2048
"""Tokens per pass at which half of that efficiency is reached."""
NODE_LINK_GB = 25.0
"""GB/s per GPU between nodes: one 200 Gb/s adapter per GPU, as usual in rented clusters."""
LINK_GB = 32.0
"""GB/s per GPU inside a node where the card has no link of its own: PCIe 4 x16."""
PCIE_GB = 25.0
NVME_GB = 3.0
"""GB/s of one NVMe drive, shared by the ranks of a node."""
HOST_ADAM_ELEMENTS = 1.0e9
"""Elements per second and node of a vectorised Adam in main memory (28 bytes each, 30 GB/s)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """Seconds of one optimizer step and what they go to."""

    compute: float
    communication: float
    """Seconds of collectives that no computation hides."""
    offload: float
    samples: int

    @property
    def seconds(self) -> float:
        return self.compute + self.communication + self.offload

    @property
    def seconds_per_sample(self) -> float:
        return self.seconds / max(1, self.samples)


def step_time(effective: Effective, facts: Facts) -> StepTime:
    """Expected time of one step; raises ValueError without model or number of devices."""
    if facts.model is None or facts.world_size is None or effective.batch is None:
        raise ValueError("the model, --gpus and the batch are needed to rank by speed")
    batch, model = effective.batch, facts.model
    length = (facts.training.sequence_length if facts.training else None) or 2048
    tokens = batch.micro_batch * length
    recompute = recompute_of(effective, facts) == "full"
    flops = tokens * model.parameters * (8 if recompute else 6)
    shape = model.architecture
    if shape is not None:
        attention = 12 * shape.layers * shape.hidden_size * length
        flops += tokens * attention * (4 if recompute else 3) // 3
    busy = tokens / (tokens + SMALL_BATCH_TOKENS)
    one_pass = flops / (_rate(facts.device) * EFFICIENCY * busy)
    compute = one_pass * batch.accumulation
    return StepTime(
        compute=compute,
        communication=_communication(effective, facts, one_pass),
        offload=_offload(effective, facts),
        samples=batch.global_batch,
    )


def _rate(device: DeviceFacts | None) -> float:
    """Dense FLOPs per second in 16 bits; an A100's where the card is unknown."""
    return (device.tflops_16bit if device and device.tflops_16bit else 312.0) * 1e12


def _link(facts: Facts) -> float:
    nodes = facts.nodes or 1
    if nodes > 1:
        return NODE_LINK_GB * 1e9
    own = facts.device.link_gb_per_second if facts.device else None
    return (own or LINK_GB) * 1e9 * 0.7


def _communication(effective: Effective, facts: Facts, one_pass: float) -> float:
    """Ring collectives: each moves (N-1)/N of the bytes through every rank's link."""
    zero, batch, model = effective.zero, effective.batch, facts.model
    assert batch is not None and model is not None
    ranks = facts.data_parallel or 1
    if ranks == 1:
        return 0.0
    share = (ranks - 1) / ranks / _link(facts)
    weights = model.parameters * effective.numerics.precision.bytes
    gradients = model.trainable * effective.numerics.communication_dtype.bytes
    if zero.stage == 3:
        recompute = 1 if recompute_of(effective, facts) == "full" else 0
        per_pass = (weights * (2 + recompute) + gradients) * share
        return max(0.0, per_pass - 0.8 * one_pass) * batch.accumulation + 0.05 * per_pass
    reductions = 1 if zero.stage < 2 else batch.accumulation
    reduced = gradients * share * (2 if zero.stage == 0 else 1)
    hidden = 0.55 * one_pass if zero.overlap_comm or zero.stage == 0 else 0.0
    exposed = max(0.05 * reduced, reduced - hidden) * reductions
    return exposed + (weights * share if zero.stage else 0.0)


def _offload(effective: Effective, facts: Facts) -> float:
    """Gradients down, weights up, Adam on the host; parameters streamed at stage 3."""
    choice, model = choice_of(effective), facts.model
    assert model is not None and effective.batch is not None
    pcie = (facts.device.pcie_gb_per_second if facts.device else None) or PCIE_GB
    ranks = facts.data_parallel or 1
    owned = model.trainable / ranks
    ranks_of_node = max(1, (facts.world_size or 1) // (facts.nodes or 1))
    seconds = 0.0
    if choice.optimizer is not Tier.DEVICE:
        seconds += owned * 4 / (pcie * 1e9 * 0.8)
        seconds += owned * ranks_of_node / HOST_ADAM_ELEMENTS
    if choice.optimizer is Tier.NVME:
        seconds += owned * ranks_of_node * 24 / (NVME_GB * 1e9)
    if choice.params is not Tier.DEVICE:
        passes = 2 * effective.batch.accumulation
        tier = pcie * 0.8 if choice.params is Tier.HOST else NVME_GB / ranks_of_node
        seconds += passes * model.parameters / ranks * 2 / (tier * 1e9)
    return seconds
