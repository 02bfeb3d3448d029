"""Stages 1 to 3: when gradients are reduced, and their sums over a window.

[Note: which gradients are reduced when]
A unit reduces its gradients in backward, as soon as it has them all: in every backward (stages 2
and 3) or only in the last one of a window (stage 1, and inside ``reduced_at_end``); until then they
are unreduced, in the unit's full parameters. Replicated parameters are reduced in one collective
after backward. If the optimizer is offloaded, hooks on the shards move each reduced gradient to its
tier while backward continues, and shards on the host follow after backward.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from dsconfig import Effective
from dsengine.communication.exchange import Reductions, UnitReduceScatter
from dsengine.communication.quantized import QuantizedReduceScatter
from dsengine.parameters.shards import is_of_experts, is_split
from dsengine.sharding.base import Gradients
from dsengine.sharding.fully_sharded import FullySharded
from dsengine.sharding.order import ReductionOrder
from dsengine.sharding.reduction import Averaging, ScaledReduceScatter
from dsengine.tiers import OffloadedGradients
from dsengine.torch_private.tensors import foreach_copy_
from dsengine.torch_private.units import (
    reduce_late_gradients,
    sharded_parameters,
    sharded_parameters_of,
)


class ShardedGradients(Gradients):
    """Gradients that units under ``fully_shard`` reduce, and those of replicated parameters."""

    def __init__(
        self, sharding: FullySharded, offloaded: OffloadedGradients | None, effective: Effective
    ) -> None:
        super().__init__(sharding, offloaded)
        self._sharded = sharding
        self._policy, self._topology = sharding.policy, sharding.topology
        zero, sizes = effective.zero, self._topology.size
        self._reduces_every_pass = zero.reduces_every_pass
        self._rounds_sums = (
            offloaded is None
            and self._reduces_every_pass
            and self._policy.accumulation is not torch.float32
        )
        self._has_sums = False
        """Whether gradients were reduced in this window; a script may set where windows end."""
        self._defers_reduction = False
        self._reduces = True
        """Whether units reduce in backward."""
        self._reductions = Reductions()
        averaging = Averaging.of(effective, sizes("states"), sizes("replicate"))
        of_experts = Averaging.of(effective, sizes("expert_data"))
        self._factor = averaging.before * averaging.after
        quantizes = zero.stage == 3 and zero.quantized_gradients
        for unit in sharding.units():
            own = of_experts if _has_experts(unit) else averaging
            self._set_reduction(unit, own, quantizes=quantizes)
        # On the host, hooks on shards would wait for the copy.
        ordered = sharding.units() if sharding.offload is None else ()
        self._order = ReductionOrder(record.shard for record in sharded_parameters_of(ordered))

    def _set_reduction(self, unit: FSDPModule, averaging: Averaging, *, quantizes: bool) -> None:
        """Set direct exchange over gloo; elsewhere, reductions other than a plain mean."""
        wire, exchanges = self._policy.wire, self._sharded.exchanges
        is_plain = averaging.is_plain_mean and self._sharded.reduce_dtype is wire
        if is_plain and not (exchanges or quantizes):
            return
        unit.set_gradient_divide_factor(1.0)
        unit.set_force_sum_reduction_for_comms(True)
        factor = averaging.before * averaging.after
        if all(record.ranks == 1 for record in sharded_parameters(unit)):
            # torch scatters nothing, and sums over copies itself.
            unit.set_all_reduce_hook(partial(_scale_in_place, factor=factor))
            return
        reduce: Any = ScaledReduceScatter(averaging, wire)
        if exchanges:
            may_wait = partial(self._may_wait, unit)
            reduce = UnitReduceScatter(self._reductions, factor, wire, may_wait)
        if quantizes:
            reduce = QuantizedReduceScatter(factor)
        unit.set_custom_reduce_scatter(reduce)

    def _may_wait(self, unit: FSDPModule) -> bool:
        """Whether the reduced gradients of ``unit`` are not read before backward ends.

        They are read by a cast, a second reduction over replicas, or accumulation.
        """
        of_experts = _has_experts(unit)
        mesh = self._topology.expert_state_mesh if of_experts else self._sharded.mesh
        return (
            mesh.ndim == 1
            and self._sharded.offload is None
            and self.offloaded is None
            and all(
                record.shard.grad is None and record.shard.dtype is self._sharded.reduce_dtype
                for record in sharded_parameters(unit)
            )
        )

    @property
    def norm_group(self) -> dist.ProcessGroup | None:
        name = "all" if self._topology.mesh.expert > 1 else "copy"
        return self._topology.group(name) if self._topology.size(name) > 1 else None

    @property
    def _copies(self) -> tuple[int, int]:
        """This rank's copy of the states, and of those of experts, in the norm's group."""
        if self._topology.mesh.expert == 1:
            return 0, 0
        mesh = self._topology.expert_state_mesh
        return self._topology.rank("replicate"), mesh.get_local_rank(0) if mesh.ndim > 1 else 0

    @property
    def reduction_order(self) -> int:
        return self._order.number

    def before_backward(self, roots: Sequence[Tensor], reduce: bool) -> None:
        del roots
        reduce = reduce or (self._reduces_every_pass and not self._defers_reduction)
        if reduce is not self._reduces:  # visits every module
            self._sharded.root.set_requires_gradient_sync(reduce)
            self._reduces = reduce

    @contextmanager
    def reduced_at_end(self) -> Iterator[None]:
        self._defers_reduction = True
        try:
            yield
        finally:
            self._defers_reduction = False
        self._sharded.root.set_requires_gradient_sync(True)
        self._reduces = True
        for unit in self._sharded.units():
            reduce_late_gradients(unit)
        self.after_backward()

    @torch.no_grad()
    def after_backward(self) -> None:
        self._reductions.finish()
        self._reductions.buffers.clear()
        self._sharded.after_backward()
        self._sharded.indivisible.accumulate()
        if self._reduces:
            self._sharded.indivisible.reduce(self._factor)
            if self.offloaded is not None:
                self.offloaded.accumulate_late()
        if self._reduces and self._rounds_sums:
            if self._has_sums or self._policy.wire is not self._policy.accumulation:
                self._round_sums()
            self._has_sums = True

    def _round_sums(self) -> None:
        """Round the sums of a window to the accumulation dtype."""
        sums = [gradient for _, gradient in self.reduced()]
        if sums:  # empty if all of this backward's reductions are deferred
            foreach_copy_(sums, [total.to(self._policy.accumulation) for total in sums])

    def unreduced(self) -> Mapping[str, Tensor] | None:
        if self._reduces:
            return None
        names = {master: name for name, master in self._masters.items()}
        sums = {
            names[record.shard]: parts[0]
            if len(parts) == 1
            else torch.stack([part.float() for part in parts]).sum(0)
            for record in sharded_parameters_of(self._sharded.units())
            if (parts := list(record.unreduced()))
        }
        replicated = self._sharded.indivisible.unreduced()
        return sums | {names[master]: total for master, total in replicated.items()}

    def drop_reduced(self) -> None:
        super().drop_reduced()
        self._has_sums = False
        self._order.restart()

    def drop(self) -> None:
        super().drop()
        self._sharded.indivisible.drop_unreduced()
        if self._sharding.has_model:
            self._drop_unreduced()

    def counted_in_norm(self, gradients: Mapping[str, Tensor]) -> list[Tensor]:
        """Leave out those that another rank of the norm's group has too."""
        is_first = self._topology.rank("copy") == 0
        is_first_part = self._topology.rank("tensor") == 0
        copy, expert_copy = self._copies
        return [
            gradient
            for name, gradient in gradients.items()
            if (is_first or isinstance(self._masters[name], DTensor))
            and (is_first_part or is_split(self._masters[name]))
            and (expert_copy if is_of_experts(self._masters[name]) else copy) == 0
        ]

    def abort_pass(self, *, in_backward: bool) -> None:
        self._reductions.finish()
        self._reductions.buffers.clear()
        self._sharded.abort_pass()
        if in_backward:
            self._drop_unreduced()

    def _drop_unreduced(self) -> None:
        for record in sharded_parameters_of(self._sharded.units()):
            record.drop_unreduced()


def _scale_in_place(gradients: Tensor, *, factor: float) -> None:
    gradients.mul_(factor)


def _has_experts(unit: FSDPModule) -> bool:
    """Whether the unit has divided experts, and nothing else."""
    return any(is_of_experts(record.shard) for record in sharded_parameters(unit))
