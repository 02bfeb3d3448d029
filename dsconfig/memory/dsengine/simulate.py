"""One rank of dsengine at stages 1 to 3: units under ``fully_shard``.

[Note: what fully_shard holds]
Gathering a unit: a flat output, then the parameters copied out of it. In forward the flat
output lives until the next unit has been gathered; in backward it goes at once, but the next
unit's is already under way. Reducing a unit: the reduce-scatter input (which lives until the
next unit is reduced), the last gradient of the unit, the output, and its fp32 cast when the
wire is narrower. Everything else of the unit's gradients is gone by then.
"""

from dsconfig.memory.dsengine import parts, replicated
from dsconfig.memory.dsengine.groups import Group, groups_of
from dsconfig.memory.dsengine.replicated import BROADCAST_BYTES
from dsconfig.memory.estimate import Phase
from dsconfig.memory.model_pass import ActivationParts
from dsconfig.memory.timeline import Timeline, Trace
from dsconfig.memory.workload import OUTSIDE, Workload
from dsconfig.runtimes.effective import Tier


def simulate(job: Workload) -> Trace:
    """Replay one rank from creation to the step."""
    if job.effective.zero.stage == 0:
        return replicated.simulate(job)
    return _Run(job).trace()


class _Run:
    """One rank; ``order`` is the order of use in forward."""

    def __init__(self, job: Workload) -> None:
        self._job = job
        self._line = Timeline()
        self._groups = groups_of(job)
        zero = job.effective.zero
        self._on_device = zero.optimizer_tier is Tier.DEVICE
        self._rests_on_device = zero.parameter_tier is Tier.DEVICE
        # With the masters on the host, what stays on the device has the compute dtype.
        self._shard_width = 4 if self._on_device else job.width
        self._keeps_gradients = zero.stage == 1 and job.accumulation > 1
        self._sums_shards = zero.stage >= 2 and job.accumulation > 1
        self._whole_part = parts.PERSISTENT if zero.stage == 3 else parts.WHOLE

    def trace(self) -> Trace:
        self._create()
        self._line.enter(Phase.FORWARD)
        self._hold_states()
        self._forward()
        self._line.enter(Phase.BACKWARD)
        self._backward()
        self._line.enter(Phase.STEP)
        self._step()
        return self._line.trace()

    def _create(self) -> None:
        """Units come to the device one by one and are cut there.

        On the CPU the device is the host: a model that was not built under zero.Init is there
        whole until its shards are made and the first gathers are done.
        """
        job, line = self._job, self._line
        built = job.elements
        if job.builds_in_pieces or not job.on_cpu:
            built = max((group.whole for group in self._groups), default=0)
        line.hold(parts.BUILT, built * 4)
        if job.ranks > 1:
            line.blink(parts.BROADCAST, min(built * 4, BROADCAST_BYTES))
        shards = sum(group.whole for group in self._groups) // job.ranks
        trained = sum(group.trainable for group in self._groups) // job.ranks
        line.hold(parts.MASTER, (shards if self._on_device else shards - trained) * 4)
        if not self._on_device and self._rests_on_device:
            line.hold(parts.SHARDS, trained * self._shard_width)
        self._gather_at_rest()
        line.free(parts.BUILT)

    def _gather_at_rest(self) -> None:
        for group in self._groups:
            if not group.gathered:
                amount = group.whole * self._job.width
                self._line.hold(parts.GATHER_BUFFER, amount)
                self._line.hold(self._whole_part, amount)
                self._line.free(parts.GATHER_BUFFER)

    def _hold_states(self) -> None:
        job, line = self._job, self._line
        trained = sum(group.trainable for group in self._groups)
        if self._on_device:
            line.hold(parts.MOMENTS, job.optimizer.state_bytes(trained // job.ranks))
        if self._keeps_gradients:
            line.hold(parts.KEPT_GRADIENTS, trained * self._kept_width)
        if self._sums_shards and self._rests_on_device:
            line.hold(parts.SHARDED_GRADIENTS, trained // job.ranks * self._shard_width)

    @property
    def _kept_width(self) -> int:
        """Gradients between passes are kept as they will be sent."""
        return self._job.communication_width

    def _forward(self) -> None:
        line, job = self._line, self._job
        activations = ActivationParts(job)
        saved = job.activations
        line.hold(activations.outside, saved.outside)
        flat = 0  # the output of the gather before
        counted: set[int] = set()
        for group in self._groups:
            amount = group.whole * job.width
            if group.gathered:
                line.hold(parts.GATHER_BUFFER, amount)
                line.hold(parts.GATHERED, amount)
                line.free(parts.GATHER_BUFFER, flat)
                flat = amount
            if group.block != OUTSIDE and group.block not in counted:
                counted.add(group.block)
                line.hold(activations.kept, saved.per_block)
            if group.gathered and group.freed_after_forward:
                line.free(parts.GATHERED, amount)
        line.free(parts.GATHER_BUFFER)
        missing = max(0, saved.blocks - len(counted))
        line.hold(activations.kept, saved.per_block * missing)
        line.hold(activations.logits, saved.logits_forward)

    def _backward(self) -> None:
        line, job = self._line, self._job
        activations, saved = ActivationParts(job), job.activations
        line.hold(activations.logits, max(0, saved.logits_backward - saved.logits_forward))
        line.free(activations.logits)
        backwards = self._groups[::-1]
        done: set[int] = set()
        for place, group in enumerate(backwards):
            self._gather_in_backward(group, backwards[place + 1 :])
            first = group.block != OUTSIDE and group.block not in done
            if first:
                done.add(group.block)
                line.hold(activations.working, saved.recomputed + saved.temporaries)
            self._gradients(group)
            if first:
                line.free(activations.working)
                line.free(activations.kept, saved.per_block)
        line.free(parts.REDUCE_INPUT)
        line.free(activations.kept)
        line.free(activations.outside)

    def _gather_in_backward(self, group: Group, following: tuple[Group, ...]) -> None:
        """What was freed after forward comes back, and the next such unit is fetched ahead."""
        line, width = self._line, self._job.width
        if group.freed_after_forward:
            amount = group.whole * width
            if not line.held(parts.GATHER_BUFFER):
                line.hold(parts.GATHER_BUFFER, amount)
            line.hold(parts.GATHERED, amount)
            line.free(parts.GATHER_BUFFER)
        ahead = next((each for each in following if each.freed_after_forward), None)
        if ahead is not None and not line.held(parts.GATHER_BUFFER):
            line.hold(parts.GATHER_BUFFER, ahead.whole * width)

    def _gradients(self, group: Group) -> None:
        """The gradients of one unit appear and are reduced."""
        line, job = self._line, self._job
        if not group.trainable:
            self._free_gathered(group)
            return
        amount = group.trainable * job.width
        if self._keeps_gradients:
            line.blink(parts.GRADIENTS, group.last_gradient * job.width)
            line.free(parts.KEPT_GRADIENTS, group.trainable * self._kept_width)
        line.hold(parts.GRADIENTS, amount)
        self._free_gathered(group)
        self._reduce(group)

    def _free_gathered(self, group: Group) -> None:
        if group.gathered:
            self._line.free(parts.GATHERED, group.whole * self._job.width)

    def _reduce(self, group: Group) -> None:
        line, job = self._line, self._job
        wire = job.communication_width
        sent = group.trainable * wire
        line.free(parts.REDUCE_INPUT)
        line.hold(parts.REDUCE_INPUT, sent)
        left = (group.trainable - group.last_gradient) * job.width
        line.free(parts.GRADIENTS, max(0, left))
        line.hold(parts.REDUCE_OUTPUT, sent // job.ranks)
        if job.on_cpu:
            line.blink(parts.GLOO_COPY, sent)
        shard = group.trainable // job.ranks * self._shard_width
        if wire != self._shard_width:
            line.hold(parts.SHARDED_GRADIENTS, shard)
            line.free(parts.REDUCE_OUTPUT)
        else:
            line.free(parts.REDUCE_OUTPUT)
            line.hold(parts.SHARDED_GRADIENTS, shard)
        if self._sums_shards or not self._rests_on_device:
            line.free(parts.SHARDED_GRADIENTS, shard)  # added to the sum, or moved to the host
        line.free(parts.GRADIENTS)

    def _step(self) -> None:
        """Update the shards; then free what is whole at rest and gather it anew."""
        line, job = self._line, self._job
        largest = max((weight.elements for weight in job.trainable), default=0)
        line.blink(parts.TEMPORARIES, job.shard(largest) * 4 * job.optimizer.temporaries)
        line.free(self._whole_part)
        self._gather_at_rest()
        line.free(parts.SHARDED_GRADIENTS)
        line.free(parts.KEPT_GRADIENTS)
