"""One rank of dsengine at stages 1 to 3: units under ``fully_shard``."""

from collections.abc import Sequence

from dsconfig import tiles
from dsconfig.cost.categories import CONSTANTS, MOMENTS, TEMPORARIES
from dsconfig.cost.dsengine import categories, replicated
from dsconfig.cost.dsengine.collectives import Collectives, Exchange, broadcast_bytes
from dsconfig.cost.dsengine.sharding import (
    Group,
    Sharing,
    copied_bytes,
    groups_of,
    host_share,
    padded,
)
from dsconfig.cost.estimate import Phase
from dsconfig.cost.optimizers import temporary_bytes
from dsconfig.cost.timeline import (
    DEQUANTIZED,
    ActivationCategories,
    Category,
    Recorder,
    Segment,
    Timeline,
    Trace,
)
from dsconfig.cost.weights import OUTSIDE, Weight
from dsconfig.cost.workload import Workload
from dsconfig.runtimes.effective import Precision, Tier


def simulate(job: Workload) -> Trace:
    """Replay one rank from creation to the step."""
    if job.effective.zero.stage == 0 and not job.mesh.splits_weights:
        return replicated.simulate(job)
    return _Run(job).trace()


class _Run:
    """One rank; ``groups`` are in the order of use in forward."""

    def __init__(self, job: Workload) -> None:
        self._job = job
        self._line = Timeline(job.memory_budget)
        self._groups = groups_of(job.effective.zero, job.model, job.weights, Sharing.of(job.mesh))
        zero = job.effective.zero
        self._on_device = zero.optimizer_tier is Tier.DEVICE
        self._shards_on_device = zero.parameter_tier is Tier.DEVICE
        self._has_masters = not job.storage.masters_on_host
        self._keeps_gradients = not zero.reduces_every_pass and job.accumulation > 1
        # Gradients of an offloaded optimizer are sent during backward, and accumulated on the host.
        self._sums_shards = zero.reduces_every_pass and job.accumulation > 1 and self._on_device
        self._offloads_gradients = not (self._shards_on_device and self._on_device)
        self._unsharded_category = (
            categories.PERSISTENT if zero.stage == 3 else categories.UNSHARDED
        )
        exchanges = job.on_cpu and job.ranks > 1
        self._collectives = (Exchange if exchanges else Collectives)(job, self._line)
        self._arriving: set[int] = set()  # indices of the groups whose gather is in flight
        self._gathered: set[int] = set()
        self._device_tile_elements = 0 if self._on_device else host_share(job)[0]
        self._backward_prefetch = _backward_prefetch(self._groups)

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
        """Move units to the device one by one and shard them there.

        On the CPU the device is the host: a model that was not built under zero.Init is there in
        full until its shards are made.
        """
        job, line = self._job, self._line
        full_model = job.on_cpu and not job.builds_in_pieces
        line.hold(CONSTANTS, job.weights.constant_bytes)
        if full_model:
            line.hold(categories.BUILT, job.elements * job.master_width)
        recorded: dict[int, Segment] = {}
        for group in self._groups:
            if group.alike not in recorded:
                recorded[group.alike] = self._unit_made(group, full_model)
            line.replay(recorded[group.alike])
        for place, group in enumerate(self._groups):
            if not group.gathered:
                self._collectives.gather_to_stay(group, self._unsharded_category)
                self._gathered.add(place)
                self._alias_unsharded(group)
        line.free(categories.BUILT)
        line.hold(categories.TILES, self._device_tile_elements * job.master_width)
        if not self._offloads_gradients and job.optimizer.eager:
            self._hold_moments()

    def _hold_moments(self) -> None:
        owned = sum(group.owned for group in self._groups)
        state = self._job.optimizer.state_bytes(owned, self._job.state_width)
        self._line.hold(MOMENTS, state)

    def _unit_made(self, group: Group, full_model: bool) -> Segment:
        """Return the segment that moves and shards a unit, shared by identical units."""
        job, line = self._job, Recorder()
        weights = [job.weights[index] for index in group.weights]
        frozen = (sum(weight.elements for weight in weights) - group.gradients) * job.width
        if not full_model:
            line.hold(categories.BUILT, group.gradients * job.master_width + frozen)
        elif job.mixed:
            line.hold(categories.NARROWED, frozen)
        if job.ranks > 1:
            line.hold_briefly(categories.BROADCAST, broadcast_bytes(job, weights))
        if not self._has_masters:
            self._narrow(line, weights, stays=full_model)
        if not self._shards_on_device:  # shards are offloaded one by one
            sizes = (
                job.shard_of(weight) * (job.shard_width if weight.trainable else job.width)
                for weight in weights
            )
            line.hold_briefly(categories.SHARDS, max(sizes))
        for category, amount in self._divided(group).items():
            line.hold(category, amount)
        if not full_model:
            line.free(categories.BUILT)
        line.free(categories.NARROWED)
        return line.cut()

    def _narrow(self, line: Timeline, weights: Sequence[Weight], *, stays: bool) -> None:
        """Move the masters of an unsharded unit to the host, leaving weights of the
        compute dtype."""
        for weight in weights:
            if weight.trainable:
                elements = padded(weight, self._job.ranks)
                line.hold(categories.NARROWED, elements * self._job.shard_width)
                line.free(categories.BUILT, 0 if stays else elements * self._job.master_width)

    def _divided(self, group: Group) -> dict[Category, int]:
        """Return the bytes of this rank's shards of a unit."""
        if not self._shards_on_device:
            return {}
        job = self._job
        trained, frozen = group.owned, group.held - group.owned
        return {
            categories.master(job) if self._has_masters else categories.SHARDS: trained
            * self._job.shard_width,
            categories.FROZEN: frozen * job.width,
        }

    def _alias_unsharded(self, group: Group) -> None:
        """Free shards with the dtype of resident unsharded weights: they become views of them."""
        for category, amount in self._divided(group).items():
            if category is categories.FROZEN or self._job.shard_width == self._job.width:
                self._line.free(category, amount)

    def _hold_states(self) -> None:
        job, line = self._job, self._line
        trained = sum(group.gradients for group in self._groups)
        if not self._offloads_gradients and not job.optimizer.eager:
            self._hold_moments()
        # Gradients of the tiles on the device are kept for the next step.
        line.hold(categories.TILES, self._device_tile_elements * job.master_width)
        line.hold(MOMENTS, job.optimizer.state_bytes(self._device_tile_elements, job.state_width))
        if self._keeps_gradients:
            # Between micro steps gradients are kept in the dtype of their reduction.
            line.hold(categories.KEPT_GRADIENTS, trained * job.gradient_width)
        if self._sums_shards and self._shards_on_device:
            owned = sum(group.owned for group in self._groups)
            line.hold(categories.SHARDED_GRADIENTS, owned * self._job.shard_width)

    def _forward(self) -> None:
        line, job = self._line, self._job
        activations = ActivationCategories(job)
        saved = job.activations
        activations.hold_in_flight(line)
        line.hold(activations.outside, saved.outside)
        counted: set[int] = set()
        for place, group in enumerate(self._groups):
            self._ensure_gathered(place, forward=True)
            self._prefetch(group.ahead)
            if group.block != OUTSIDE and group.block not in counted:
                counted.add(group.block)
                activations.run_block(line, job)
                line.hold(activations.kept, saved.per_block)
            if group.freed_after_forward:
                self._reshard(place)
        self._collectives.end_forward()
        missing = max(0, saved.blocks - len(counted))
        line.hold(activations.kept, saved.per_block * missing)
        line.hold(activations.logits, saved.logits_forward)

    def _ensure_gathered(self, place: int, *, forward: bool) -> None:
        """Gather a unit, waiting for its gather if in flight."""
        if place in self._gathered:
            return
        self._prefetch((place,))
        self._collectives.arrive(self._groups[place], forward=forward)
        self._arriving.discard(place)
        self._gathered.add(place)

    def _prefetch(self, places: tuple[int, ...]) -> None:
        for place in places:
            if place not in self._gathered and place not in self._arriving:
                self._collectives.start_gather(self._groups[place])
                self._arriving.add(place)

    def _reshard(self, place: int) -> None:
        group = self._groups[place]
        if group.gathered and place in self._gathered:
            self._line.free(categories.GATHERED, group.elements * self._job.width)
            self._gathered.discard(place)

    def _backward(self) -> None:
        line, job = self._line, self._job
        activations, saved = ActivationCategories(job), job.activations
        line.hold(activations.logits, max(0, saved.logits_backward - saved.logits_forward))
        line.free(activations.logits)
        done: set[int] = set()
        for place in reversed(range(len(self._groups))):
            group = self._groups[place]
            self._ensure_gathered(place, forward=False)
            self._prefetch(self._backward_prefetch[place])
            first = group.block != OUTSIDE and group.block not in done
            if first:
                done.add(group.block)
                activations.recompute_block(line, job)
                line.hold(activations.working, saved.recomputed + saved.temporaries)
                line.hold(DEQUANTIZED, job.dequantized_bytes)
            self._gradients(place)
            if first:
                line.free(DEQUANTIZED)
                line.free(activations.working)
                line.free(activations.kept, saved.per_block)
        self._collectives.end_backward()
        line.free(categories.REDUCE_OUTPUT)
        line.free(activations.kept)
        line.free(activations.outside)
        line.free(activations.in_flight)
        self._round_sums()

    def _gradients(self, place: int) -> None:
        """Make and reduce the gradients of one unit."""
        line, job, group = self._line, self._job, self._groups[place]
        if not group.trainable:
            self._reshard(place)
            return
        held = job.width
        if self._keeps_gradients:
            if job.gradient_width != job.width:  # added to sums of a wider dtype
                held = job.gradient_width
                line.hold_briefly(categories.GRADIENTS, group.gradients * job.width)
            else:
                line.hold_briefly(categories.GRADIENTS, group.last_gradient * job.width)
            line.free(categories.KEPT_GRADIENTS, group.gradients * held)
        line.hold(categories.GRADIENTS, group.gradients * held)
        self._reshard(place)
        self._reduce(group, held)

    def _reduce(self, group: Group, held: int) -> None:
        """Reduce a unit; ``held``: bytes per element copied into the reduction's input."""
        line, job = self._line, self._job
        wire, same = job.gradient_width, job.gradient_width == self._job.shard_width
        self._collectives.take_input(group.trainable)
        kept = group.last_gradient if job.ranks > 1 else 0
        line.free(categories.GRADIENTS, max(0, (group.gradients - kept) * held))
        reduced = group.owned
        line.hold(categories.REDUCE_OUTPUT, reduced * wire)
        read_at_once = self._sums_shards or self._offloads_gradients or not same
        alone = job.effective.zero.mics_shard_size <= 0
        self._collectives.reduce(group.trainable, may_wait=alone and not read_at_once)
        # The output of an all-reduce over replicas is held until backward ends, unless unchanged.
        kept_until_end = job.replicas > 1 and (self._offloads_gradients or not same)
        shard = reduced * self._job.shard_width
        if not same:
            line.hold(categories.SHARDED_GRADIENTS, shard)
        if not kept_until_end:
            line.free(categories.REDUCE_OUTPUT)
        if same and not kept_until_end:
            line.hold(categories.SHARDED_GRADIENTS, shard)
        if self._sums_shards or self._offloads_gradients:
            line.free(categories.SHARDED_GRADIENTS, shard)  # added to the sum, or moved to the host
        line.free(categories.GRADIENTS)

    def _round_sums(self) -> None:
        """Round accumulated gradients to the accumulation dtype."""
        job = self._job
        narrow = job.effective.numerics.grad_accum_dtype is not Precision.FP32
        summed = job.accumulation > 1 or job.communication_width != job.accumulation_width
        if job.effective.zero.reduces_every_pass and narrow and summed and self._on_device:
            held = self._line.held_bytes(categories.SHARDED_GRADIENTS) // self._job.shard_width
            self._line.hold_briefly(categories.ROUNDED, held * job.accumulation_width)

    def _step(self) -> None:
        """Update the shards, free the gradients, update unsharded weights in place."""
        line, job = self._line, self._job
        here = self._device_tile_elements if self._offloads_gradients else job.owned
        copies = copied_bytes(job, here) if self._offloads_gradients else 0
        line.hold_briefly(TEMPORARIES, temporary_bytes(job, here, job.shard) + copies)
        line.free(categories.SHARDED_GRADIENTS)
        line.free(categories.KEPT_GRADIENTS)
        if job.ranks > 1:
            line.hold_briefly(categories.PACKED, self._small_bytes())

    def _small_bytes(self) -> int:
        """Return the unsharded parameters that are gathered in one flat buffer after an update."""
        job, sharing = self._job, Sharing.of(self._job.mesh)
        sizes = [
            padded(weight, ranks) * job.width
            for group in self._groups
            if not group.gathered
            for weight in map(job.weights.__getitem__, group.weights)
            if weight.trainable and (ranks := sharing.of_weight(weight)) > 1
        ]
        return sum(size for size in sizes if size < tiles.PACKED_BELOW)


def _backward_prefetch(groups: Sequence[Group]) -> list[tuple[int, ...]]:
    """Return what is gathered in backward while each unit computes: forward's order, reversed."""
    prefetched: list[list[int]] = [[] for _ in groups]
    for place, group in enumerate(groups):
        for ahead in group.ahead:
            if ahead > place:
                prefetched[ahead].insert(0, place)
    return [
        tuple(indices) if indices else (place - 1,) if place else ()
        for place, indices in enumerate(prefetched)
    ]
