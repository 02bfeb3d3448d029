"""A model of the time of one step: to rank configs, not to promise tokens per second.

Compute is FLOPs over the rate of the card, and the update of states in its memory; communication is
bytes over links; offload is bytes over PCIe and NVMe and the host's Adam. What overlaps is not
taken off: published runs order the stages by the bytes they send (docs/decisions/0503). Every rate
is in ``hardware``.
"""

from dataclasses import dataclass

from dsconfig.cost.activations import Recompute, recompute_of, style_of
from dsconfig.cost.hardware import SMALL_BATCH_TOKENS, UPDATE_BYTES, Rates, rates
from dsconfig.facts.facts import Facts
from dsconfig.facts.model import ModelTree
from dsconfig.runtimes.effective import Batch, Effective, Tier

USUAL_TOKENS = 2048
"""Tokens of a sample where nobody says: the order of choices hardly depends on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """Seconds of one optimizer step and what they go to."""

    compute: float
    """Forward, backward and what is computed again, and the update of states on the device."""
    communication: float
    """Seconds of collectives, as if no computation hid them."""
    offload: float
    samples: int
    tokens: int = 0
    """Of one rank in one step."""
    useful_flops: float = 0.0
    """Of one rank in one step: what the model needs, nothing computed twice."""

    @property
    def tokens_per_second(self) -> float:
        """Of one GPU."""
        return self.tokens / self.seconds

    def mfu(self, peak_flops: float | None) -> float | None:
        """The share of a card's rate that goes to the model; None where the rate is unknown."""
        return self.useful_flops / self.seconds / peak_flops if peak_flops else None

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
    step = _Step(effective, facts, facts.model, effective.batch)
    # Ranks that share a sample share its tokens.
    tokens = step.tokens * effective.batch.accumulation * (facts.data_parallel or 1)
    return StepTime(
        tokens=tokens // facts.world_size,
        useful_flops=tokens * sum(step.flops_per_token()) / facts.world_size,
        compute=step.one_pass * effective.batch.accumulation + step.update(),
        communication=step.communication(),
        offload=step.offload(),
        samples=effective.batch.global_batch,
    )


class _Step:
    """One step of one rank."""

    def __init__(self, effective: Effective, facts: Facts, model: ModelTree, batch: Batch) -> None:
        self._effective, self._facts = effective, facts
        self._model, self._batch = model, batch
        self._rates: Rates = rates(facts)
        self._ranks = max(1, facts.data_parallel or 1)
        self._recompute = recompute_of(effective, facts)
        zero = effective.zero
        self._owned = model.trainable / (self._ranks if zero.stage else 1)
        training = facts.training
        self._length = (training.sequence_length if training else None) or USUAL_TOKENS
        self.tokens = batch.micro_batch * self._length
        self.one_pass = self._flops() / self._rates.flops

    def _flops(self) -> float:
        """Of one micro batch, as if a short pass had more of them.

        6 per token and parameter, 12 s h per token and block for the scores: a third of both is
        forward, which full recomputation does once more. Selective recomputation repeats the
        scores of eager attention, or beside flash attention every other matrix product.
        """
        facts, tokens = self._facts, self.tokens
        matrices, scores = self.flops_per_token()
        again = 0.0
        if self._recompute is Recompute.FULL:
            again = (matrices + scores) / 3
        elif self._recompute is Recompute.SELECTIVE:
            flash = style_of(self._effective, facts).flash
            again = matrices / 6 if flash else scores / 3
        busy = tokens / (tokens + SMALL_BATCH_TOKENS)
        return tokens * (matrices + scores + again) / busy

    def flops_per_token(self) -> tuple[float, float]:
        """Of the matrices, and of the scores of attention."""
        shape = self._model.architecture
        scores = 12.0 * shape.layers * shape.hidden_size * self._length if shape else 0.0
        return 6.0 * self._model.parameters, scores

    def update(self) -> float:
        """States on the device are read and written once."""
        if self._effective.zero.optimizer_tier is not Tier.DEVICE:
            return 0.0
        return self._owned * UPDATE_BYTES / self._rates.memory

    def communication(self) -> float:
        """Ring collectives: each moves (N-1)/N of the bytes through every rank's link.

        Below stage 3 gradients are reduced, once a step or at stage 2 in every pass, and weights
        gathered once; at stage 3 both in every pass, 1.5 times as much (Rajbhandari et al. 2020,
        arXiv:1910.02054, section 7).
        """
        zero, numerics, steps = self._effective.zero, self._effective.numerics, self._batch
        weights = self._model.parameters * numerics.precision.bytes
        gradients = self._model.trainable * numerics.communication_dtype.bytes
        if zero.stage == 0:
            sent = 2.0 * gradients
        elif zero.stage == 3:
            gathers = 3 if self._recompute is Recompute.FULL else 2
            sent = (gathers * weights + gradients) * steps.accumulation
        else:
            sent = gradients * (steps.accumulation if zero.stage == 2 else 1) + weights
        return sent * (self._ranks - 1) / self._ranks / self._rates.link

    def offload(self) -> float:
        """Gradients down after every pass, weights up once, Adam on the host; parameters streamed
        through forward and backward at stage 3."""
        zero, speed = self._effective.zero, self._rates
        width, steps = self._effective.numerics.precision.bytes, self._batch.accumulation
        seconds = 0.0
        if zero.optimizer_tier is not Tier.DEVICE:
            seconds += self._owned * width * (steps + 1) / speed.pcie
            seconds += self._owned / speed.host_adam
        if zero.optimizer_tier is Tier.NVME:
            states = 12 * self._owned
            seconds += states / speed.nvme_read + states / speed.nvme_write
        if zero.parameter_tier is not Tier.DEVICE:
            streamed = 2 * steps * self._model.parameters / self._ranks * width
            seconds += streamed / speed.pcie
            if zero.parameter_tier is Tier.NVME:
                seconds += streamed / speed.nvme_read
        return seconds
