"""A model of the time of one step, with its components and a range.

Compute is FLOPs over the rate a device reaches, plus memory traffic; communication is bytes over
links; offload is bytes over PCIe and NVMe and the host's Adam; the bubble is the idle time of a
pipeline. Published runs hide between none and all of their communication behind compute: half of
what can be hidden is counted, and both ends make the range (docs/decisions/0503). All rates are in
``hardware``.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from dsconfig import pipelines
from dsconfig.cost import hardware, unfused
from dsconfig.cost.activations import Recompute, experts_at_work, recompute_of, style_of
from dsconfig.cost.communication import collectives, traffic, volume_of
from dsconfig.cost.hardware import Rates, rates
from dsconfig.cost.master_weights import priced
from dsconfig.cost.weights import packing_of, weights_of
from dsconfig.facts.facts import Facts
from dsconfig.facts.model import Architecture, ModelTree
from dsconfig.facts.naming import named
from dsconfig.mesh import UNDIVIDED
from dsconfig.runtimes.base import Runtime, runtime_of
from dsconfig.runtimes.degrees import with_degrees, with_executed_degrees
from dsconfig.runtimes.effective import Batch, Effective, Tier, mesh_of

USUAL_TOKENS = 2048
"""Tokens per sample if not specified: the order of choices hardly depends on it."""

WITHIN_LAYERS = ("tensor", "sequence", "expert", "pipeline", "hpz")
"""Axes whose ranks are in one node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """Seconds of one optimizer step by component."""

    compute: float
    """Forward, backward and recomputation, and the update of states on the device."""
    communication: float
    """Collectives not hidden by computation."""
    offload: float
    bubble: float = 0.0
    """Time a pipeline stage waits for the others."""
    low: float = 0.0
    high: float = 0.0
    samples: int
    tokens: int = 0
    """Per rank and step."""
    useful_flops: float = 0.0
    """Per rank and step: FLOPs of the model without recomputation."""
    traffic: Mapping[str, int]
    """Bytes sent per rank and step, by collective."""

    @property
    def tokens_per_second(self) -> float:
        """Return tokens per second of one GPU."""
        return self.tokens / self.seconds

    def mfu(self, peak_flops: float | None) -> float | None:
        """Return the model FLOPs utilization; None if the device's peak rate is unknown."""
        return self.useful_flops / self.seconds / peak_flops if peak_flops else None

    @property
    def seconds(self) -> float:
        return self.compute + self.communication + self.offload + self.bubble

    @property
    def seconds_per_sample(self) -> float:
        return self.seconds / max(1, self.samples)


def step_time(
    effective: Effective, facts: Facts, *, runtime: str | Runtime = "dsengine"
) -> StepTime:
    """Return the expected time of one step; raises ValueError without model or
    number of devices."""
    program = runtime_of(runtime)
    divided = with_degrees if program.runs_deepspeed else with_executed_degrees
    facts = divided(facts, effective.config)
    model, ranks, batch = facts.model, facts.world_size, effective.batch
    if model is None or ranks is None or batch is None:
        raise ValueError(
            f"the step time requires {named('model')}, {named('gpus')} and the batch size"
        )
    sequences = facts.companions.sequences_per_sample
    in_sequences = replace(batch, micro_batch=batch.micro_batch * sequences)
    step = _StepModel(priced(effective, facts), facts, model, in_sequences, program)
    samples = batch.micro_batch * batch.accumulation * (facts.data_parallel or 1)
    tokens = samples * sequences * step.length
    usual, low, high = (
        step.parts(rates(facts, end, runtime=program)) for end in ("usual", "fast", "slow")
    )
    return StepTime(
        tokens=tokens // ranks,
        useful_flops=tokens * sum(step.flops_per_token()) / ranks,
        compute=usual.compute,
        communication=usual.shown(hardware.HIDDEN_SHARE),
        offload=usual.offload,
        bubble=usual.bubble,
        low=low.total(hidden=1.0),
        high=high.total(hidden=0.0),
        samples=samples,
        traffic=traffic(step.collectives),
    )


@dataclass(frozen=True, slots=True)
class _Parts:
    """Seconds at one set of rates; ``overlappable`` communication can be hidden behind compute."""

    compute: float
    overlappable: float
    exposed: float
    offload: float
    bubble: float

    def shown(self, hidden: float) -> float:
        """Return the remaining communication if this fraction of what can be hidden is."""
        covered = min(self.overlappable * hidden, self.compute)
        return self.exposed + self.overlappable - covered

    def total(self, *, hidden: float) -> float:
        return self.compute + self.shown(hidden) + self.offload + self.bubble


class _StepModel:
    """One step of one rank."""

    def __init__(
        self,
        effective: Effective,
        facts: Facts,
        model: ModelTree,
        batch: Batch,
        program: Runtime,
    ) -> None:
        self._effective, self._facts, self._program = effective, facts, program
        self._model, self._batch = model, batch
        self._ranks = max(1, facts.data_parallel or 1)
        mesh = mesh_of(effective.zero, facts)
        self._sharing = mesh.gradient_ranks
        self._split = facts.degrees.per_model
        self._recompute = recompute_of(effective, facts)
        self._width = effective.numerics.precision.bytes
        zero = effective.zero
        packing = packing_of(effective, facts)
        # Elements that are stored and gathered: fewer if base weights are quantized.
        packed = weights_of(model, packing=packing).elements if packing else None
        self._stored_elements = packed or model.parameters
        weights = weights_of(model, replace(UNDIVIDED, expert=facts.degrees.expert))
        # All states together are divided over the ranks from stage 1 on, experts or not.
        states = model.trainable / self._sharing if zero.stage else weights.trained
        self._owned = states / self._split
        self._read_elements = weights.elements / self._split
        training = facts.training
        self.length = (training.sequence_length if training else None) or USUAL_TOKENS
        # Per micro step and rank.
        self._tokens = batch.micro_batch * self.length / facts.degrees.sequence
        volume = volume_of(effective, facts, mesh, runtime=program, tokens=self._tokens)
        self.collectives = collectives(effective, mesh, volume)

    def parts(self, speed: Rates) -> _Parts:
        steps, stages = self._batch.accumulation, self._facts.degrees.pipeline
        one_pass = self._one_pass(speed)
        passes = one_pass * steps
        overlappable, exposed = self._communication(speed)
        return _Parts(
            compute=passes + self._update(speed),
            overlappable=overlappable,
            exposed=exposed,
            offload=self._offload(speed),
            bubble=one_pass * pipelines.idle_passes(stages),
        )

    def _one_pass(self, speed: Rates) -> float:
        """Return the seconds of one micro batch: products and memory traffic; or the host, if it is
        slower.

        Weights are read once in forward and twice in backward, which dominates short micro steps.
        """
        products = self._flops() / self._rate(speed)
        weights = 3 * self._width * self._read_elements / speed.memory
        work = products + weights + self._moved() / speed.memory
        return max(work, self._launches() * self._host_work() * speed.launch)

    def _rate(self, speed: Rates) -> float:
        """Return FLOPs per second; selective recomputation repeats half of the products and gets
        half of the difference."""
        rate_of = {
            Recompute.NONE: speed.flops,
            Recompute.SELECTIVE: (speed.flops + speed.flops_recomputing) / 2,
            Recompute.FULL: speed.flops_recomputing,
        }
        return rate_of[self._recompute]

    def _flops(self) -> float:
        """Return the FLOPs of one micro batch and rank.

        6 per token and parameter, 12 s h per token and block for the scores: a third of both is
        forward, which full recomputation repeats. Selective recomputation repeats the scores of
        eager attention, or with flash attention every other matrix product.
        """
        matrices, scores = self.flops_per_token()
        recomputed = 0.0
        if self._recompute is Recompute.FULL:
            recomputed = (matrices + scores) / 3
        elif self._recompute is Recompute.SELECTIVE:
            flash = style_of(self._effective, self._facts).flash
            recomputed = matrices / 6 if flash else scores / 3
        copies = self._facts.companions.frozen_copies * (matrices + scores) / 3
        return self._tokens * (matrices + scores + recomputed + copies) / self._split

    def flops_per_token(self) -> tuple[float, float]:
        """Return the FLOPs of the matrices, and of attention scores or scans.

        A frozen weight gets no gradient: 4 instead of 6. In a mixture of experts only active
        experts count.
        """
        model, shape = self._model, self._model.architecture
        scores = _mixing_flops(shape, self.length) if shape else 0.0
        working = _working_share(model)
        frozen = model.parameters - model.trainable
        return (6.0 * model.trainable + 4.0 * frozen) * working, scores

    def _moved(self) -> float:
        """Return the memory traffic of unfused attention and activation in one micro step."""
        shape = self._model.architecture
        if shape is None:
            return 0.0
        style = style_of(self._effective, self._facts)
        moved = unfused.bytes_of_token(shape, style, self.length)
        return self._passes * self._tokens * moved / self._split

    @property
    def _passes(self) -> int:
        """Forward once, backward twice, and recomputation: in units of forward."""
        return 4 if self._recompute is Recompute.FULL else 3

    def _launches(self) -> float:
        """Return the kernels and hooks the host launches in one micro step, for one
        pipeline stage."""
        shape = self._model.architecture
        layers = (shape.layers if shape else 32) / self._facts.degrees.pipeline
        passes = self._passes + self._facts.companions.frozen_copies
        return hardware.LAUNCHES_OF_BLOCK * layers * passes

    def _host_work(self) -> float:
        """Return the host time of a micro step relative to launching its kernels alone."""
        engine = "deepspeed" if self._program.runs_deepspeed else "dsengine"
        return hardware.HOST_OF_STAGES[engine][self._effective.zero.stage]

    def _update(self, speed: Rates) -> float:
        """Return the seconds to read and write the states on the device once.

        Adam reads gradient, master weight and two moments, and writes all but the gradient.
        """
        if self._effective.zero.optimizer_tier is not Tier.DEVICE:
            return 0.0
        numerics = self._effective.numerics
        read_and_written = 3 * numerics.master_dtype.bytes + 4 * numerics.state_dtype.bytes
        return self._owned * read_and_written / speed.memory

    def _communication(self, speed: Rates) -> tuple[float, float]:
        """Return (seconds that compute can hide, seconds it waits for)."""
        hidden = exposed = 0.0
        for each in self.collectives:
            link = speed.node_link if each.axis in WITHIN_LAYERS else speed.link
            seconds = each.sent / link
            if each.overlaps:
                hidden += seconds
            else:
                exposed += seconds
        return hidden, exposed

    def _offload(self, speed: Rates) -> float:
        """Return the seconds for gradients down, weights up and Adam on the host; parameters
        streamed through forward and backward at stage 3."""
        zero, steps = self._effective.zero, self._batch.accumulation
        width, seconds = self._width, 0.0
        if zero.optimizer_tier is not Tier.DEVICE:
            seconds += self._owned * self._sent_bytes() / speed.pcie
            seconds += self._owned / speed.host_adam
        if zero.optimizer_tier is Tier.NVME:
            numerics = self._effective.numerics
            # Masters and, as in Adam, two moments.
            states = (numerics.master_dtype.bytes + 2 * numerics.state_dtype.bytes) * self._owned
            seconds += states / speed.nvme_read + states / speed.nvme_write
        if zero.parameter_tier is not Tier.DEVICE:
            gathers = 3 if self._recompute is Recompute.FULL else 2
            held = self._stored_elements / self._split / self._sharing
            streamed = gathers * steps * held * width
            seconds += streamed / speed.pcie
            if zero.parameter_tier is Tier.NVME:
                seconds += streamed / speed.nvme_read
        return seconds

    def _sent_bytes(self) -> float:
        """Return the PCIe bytes of one step per owned element of an offloaded optimizer.

        dsengine: the gradient of every micro step down, the weight up once. DeepSpeed sends the
        last gradient in fp32; accumulated sums return to the GPU to be added to, at stage 3 in each
        micro step (``partition_grads``), below it from the second on
        (``async_accumulate_grad_in_cpu_via_gpu``). Offloaded weights are not copied back.
        """
        zero, steps, width = self._effective.zero, self._batch.accumulation, self._width
        if not self._program.runs_deepspeed:
            return width * (steps + 1)
        master = self._effective.numerics.master_dtype.bytes
        up = 0 if zero.parameter_tier is not Tier.DEVICE else width
        if zero.stage == 3:
            return master + 2 * width * steps + up
        sums = 2 * steps - 1 if steps > 1 else 0
        return master + width * sums + up


def _mixing_flops(shape: Architecture, length: int) -> float:
    """Return the FLOPs of one token, forward and backward, besides the matrices.

    Two products with every token of the sample in forward, as wide as a query and as a value, and
    twice as many in backward; for non-attention layers the FLOPs of their scans.
    """
    latent = shape.extras.get("kv_lora_rank")
    widths = 2 * shape.width_of_head
    if latent:
        widths = sum(
            int(shape.extras[name])
            for name in ("qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim")
        )
    scores = 6.0 * shape.attentions * shape.heads * widths * length
    scans = sum(
        count * mixer.scan_flops for block, count in shape.kinds.items() for mixer in block.mixers
    )
    return scores + 3.0 * scans


def _working_share(model: ModelTree) -> float:
    """Return the fraction of parameters active per token: in a mixture of experts the selected
    ones."""
    shape = model.architecture
    if shape is None or not (shape.experts and shape.experts_per_token):
        return 1.0
    matrices = 3 if shape.gated_mlp else 2
    expert = matrices * shape.hidden_size * (shape.expert_size or shape.width_of_mlp)
    idle = shape.mixed_blocks * expert * (shape.experts - experts_at_work(shape))
    return max(model.parameters - idle, model.parameters // 100) / model.parameters
