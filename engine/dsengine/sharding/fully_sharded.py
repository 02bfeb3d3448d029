"""Stages 1 to 3, built on ``fully_shard``.

[Note: order of construction]
Each step of ``FullySharded.__init__`` depends on the previous ones. Leaf marks are read while
modules have their own classes: ``fully_shard`` changes them. Partitioned parameters of zero.Init
are replaced by meta parameters before the module is sharded, and restored right after. Inner units
are created before the root, which would otherwise take their parameters. Masters are copied to the
host from the unit being sharded, so its shards are 16-bit from the start. Shards are moved to files
before the first gather, where torch fixes dtypes and memory. ``masters`` are read once no shard is
replaced any more; collectives are set once all units exist; only then are unsharded units gathered.
Direct-use detection is last, because it requires sharded units.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from dsconfig import Effective, Plan, PlannedUnit, tiles
from dsengine.communication.devices import wait_for_stream
from dsengine.communication.exchange import (
    Reductions,
    UnitAllGather,
    UnitReduceScatter,
    can_exchange,
)
from dsengine.communication.quantized import Part, QuantizedAllGather, QuantizedReduceScatter
from dsengine.optimizers.precision import Policy
from dsengine.parameters.quantized import quantized_layers
from dsengine.parameters.shards import is_of_experts, is_split, local_slice_of
from dsengine.sharding.base import Sharding, original_names
from dsengine.sharding.direct_use import DirectUse
from dsengine.sharding.generation import fit
from dsengine.sharding.indivisible import Indivisible
from dsengine.sharding.leaves import (
    leaves_across_units,
    mark_configured,
    reduce_unused_of_leaves,
    reduce_unused_of_lists,
)
from dsengine.sharding.order import ReductionOrder
from dsengine.sharding.reduction import Averaging, ScaledReduceScatter
from dsengine.sharding.units import UnitSharder, as_unit, set_prefetch
from dsengine.sharding.unsharded_units import UnshardedUnits
from dsengine.sharding.zero.adoption import attach_shards, replace_partitioned
from dsengine.sharding.zero.dtype_view import restore_view, view_as_dtype
from dsengine.sharding.zero.parameter_attributes import install_parameter_attributes
from dsengine.sharding.zero.registry import register_model
from dsengine.sharding.zero.status import set_gathered_attributes, watch_writes
from dsengine.sharding.zero.unsavable import refuse_saving_shards
from dsengine.tiers.mapped import move_shards_to_files
from dsengine.tiers.masters import HostMasters
from dsengine.tiers.memory import can_pin
from dsengine.tiers.settings import OffloadSettings
from dsengine.topology import Topology
from dsengine.torch_private.tensors import as_shard, foreach_copy_
from dsengine.torch_private.units import (
    ShardedParameter,
    abort_pass,
    drop_unused_gathers,
    initialize_root,
    inputs_to,
    kept_gathered,
    reduce_late_gradients,
    sharded_parameters,
    sharded_parameters_of,
    units_of,
    units_without,
    unshard_asynchronously,
)


class FullySharded(Sharding):
    """The plan's units under ``fully_shard``; the optimizer updates shards.

    In mixed precision the shards of trained parameters are fp32 and gathered units have the compute
    dtype; frozen weights are stored in the compute dtype, or in their own if it is narrower. A unit
    that the plan does not gather around its use stays unsharded between steps: it is not resharded
    in forward or backward, and is refreshed after the optimizer has updated the shards.
    """

    cast_inputs = True
    """Whether a unit casts its floating-point inputs to its dtype.

    Scripts cast inputs to the dtype of a weight, which between steps is that of the shards.
    """

    def __init__(
        self,
        module: nn.Module,
        plan: Plan,
        policy: Policy,
        topology: Topology,
        device: torch.device,
    ) -> None:
        super().__init__(module)
        self.policy = policy
        self._topology = topology
        self.mesh = topology.state_mesh
        self._device = device
        zero = plan.effective.zero
        self.reduces_every_micro_step = zero.reduces_every_pass
        self._reduce_dtype = policy.reduction_dtype(full_window=not self.reduces_every_micro_step)
        self._rounds_sums = (
            self.reduces_every_micro_step and policy.accumulation is not torch.float32
        )
        self._has_sums = False
        """Whether gradients were reduced in this window; a script may set where windows end."""
        self._defers_reduction = self._keeps_gathered = False
        self._reduces = True
        self._may_be_gathered = False
        """Whether units may still be gathered from a forward without a backward."""
        self._is_stage_3 = zero.stage == 3
        self._quantizes_gradients = self._is_stage_3 and zero.quantized_gradients
        self._offload = zero.offload_param if self._is_stage_3 else None
        self.unsharded: list[FSDPModule] = []
        """Units that stay unsharded between steps, one module for each."""
        self._views: dict[nn.Parameter, nn.Parameter] = {}
        """Compute-dtype views that modules have instead of fp32 shards, by shard."""
        averaging = Averaging.of(
            plan.effective, topology.size("states"), topology.size("replicate")
        )
        self._expert_averaging = Averaging.of(plan.effective, topology.size("expert_data"))
        units = plan.stages[topology.rank("pipeline")].units
        heads = self._shard_model(plan, units, averaging)
        self._configure_units(units, heads, averaging)
        if self._is_stage_3:
            self._quantize_gathers(plan.effective)
            install_parameter_attributes()
            self._publish_status(watches=zero.enable_sanity_checks)
            self._set_views()
        if self._is_stage_3 or topology.mesh.splits_weights:
            refuse_saving_shards(list(self.module.parameters()))
        resharded = self._resharded_units()
        self._direct_use = DirectUse(self.module, resharded) if resharded else None

    def _shard_model(
        self, plan: Plan, units: Sequence[PlannedUnit], averaging: Averaging
    ) -> list[FSDPModule | None]:
        """Shard the model and set ``masters``; return the head module of each planned unit."""
        module = self.module
        originals = original_names(module)
        masters = self._host_masters(plan.effective)
        # While modules have their own classes.
        mark_configured(module, plan.effective.zero.leaf_module or {})
        partitioned = replace_partitioned(module)
        self._set_dtypes_of_meta(module, masters)
        self._indivisible = Indivisible(module, averaging, self._topology.group("gradients"))
        heads = self._shard_units(units, masters)
        reduce_unused_of_leaves(module, self._units())
        if plan.effective.zero.ignore_unused_parameters:
            reduce_unused_of_lists(module, self._units())
        attach_shards(module, partitioned, self._device, masters)
        self._indivisible.initialize(module, self._device, self.policy)
        if masters is not None:
            self.host_masters = masters.parts
        self._move_shards_to_files()
        replicated = self._indivisible.masters
        self.masters = {name: replicated.get(p, p) for name, p in module.named_parameters()}
        self._order = ReductionOrder(self._hooked_shards())
        register_model(module, originals, self.masters)
        return heads

    def _hooked_shards(self) -> list[nn.Parameter]:
        """Return the shards on which hooks cost nothing: on the host they wait for the copy."""
        if self._offload is not None:
            return []
        return [record.shard for record in sharded_parameters_of(self._units())]

    def _shard_units(
        self, units: Sequence[PlannedUnit], masters: HostMasters | None
    ) -> list[FSDPModule | None]:
        sharder = UnitSharder(
            self.module,
            self.mesh,
            self._topology.group("gradients"),
            self._topology.expert_state_mesh if self._topology.mesh.expert > 1 else None,
            self._device,
            self.policy,
            cast_inputs=self.cast_inputs,
            reduce_dtype=self._reduce_dtype,
            offload=self._offload,
            masters=masters,
            ignored=self._indivisible.parameters,
        )
        for leaf, gather in list(leaves_across_units(self.module, units)):
            sharder.shard_leaf(leaf, gather=gather)
        heads = [sharder.shard_unit(unit) for unit in units]
        if not isinstance(self.module, FSDPModule):
            sharder.shard(
                [self.module],
                reshard_after_forward=False,
                cast_inputs=False,
                gather=self._is_stage_3,
            )
        for head in sharder.unsharded:
            self._keep_unsharded(head)
        return heads

    def _configure_units(
        self,
        units: Sequence[PlannedUnit],
        heads: Sequence[FSDPModule | None],
        averaging: Averaging,
    ) -> None:
        """Set how units are gathered and reduced; gather the unsharded ones."""
        self._exchanges = can_exchange(self._state_group, self._device)
        self._packed = {layer.module for layer in quantized_layers(self.module)}
        self._all_gather = UnitAllGather()
        self._reductions = Reductions()
        for unit in self._units():
            of_experts = _has_experts(unit)
            self._set_collectives(unit, self._expert_averaging if of_experts else averaging)
        set_prefetch(units, heads)
        self._unsharded_units = UnshardedUnits(
            self.unsharded, self._shard_group, exchanges=self._exchanges
        )
        self._ensure_gathered()
        for unit in self.unsharded:
            self._unsharded_units.use_full_state_dicts(unit)
        if self._exchanges:
            unshard_asynchronously(self.root)
        initialize_root(self.root)

    def _publish_status(self, *, watches: bool) -> None:
        """Set DeepSpeed's status attributes, which scripts read from every parameter of stage 3."""
        for parameter in (*self.module.parameters(), *self.masters.values()) if watches else ():
            watch_writes(parameter)
        for parameter in self._indivisible.parameters:
            set_gathered_attributes(parameter, parameter, persists=True)
        for record in sharded_parameters_of(self.unsharded):
            set_gathered_attributes(record.unsharded, record.shard, persists=True)

    def _set_views(self) -> None:
        """Give modules views of resharded parameters in the dtype they have when gathered."""
        compute = self.policy.compute
        for record in sharded_parameters_of(self._resharded_units()):
            shard = record.shard
            if self.policy.is_mixed and shard.is_floating_point() and shard.dtype is not compute:
                if shard not in self._views or self._views[shard].device != shard.device:
                    self._views[shard] = view_as_dtype(shard, compute)
                restore = partial(restore_view, shard=shard, dtype=compute)
                record.set_view(self._views[shard], restore)

    def _units(self) -> list[FSDPModule]:
        return units_of(self.module)

    def _resharded_units(self) -> list[FSDPModule]:
        """Return the units that are sharded between steps."""
        return units_without(self._units(), self.unsharded)

    def _set_collectives(self, unit: FSDPModule, averaging: Averaging) -> None:
        """Set direct exchange over gloo; elsewhere, reductions other than a plain mean."""
        wire = self.policy.wire
        is_plain = averaging.is_plain_mean and self._reduce_dtype is wire
        if is_plain and not (self._exchanges or self._quantizes_gradients):
            return
        unit.set_gradient_divide_factor(1.0)
        unit.set_force_sum_reduction_for_comms(True)
        factor = averaging.before * averaging.after
        if all(record.ranks == 1 for record in sharded_parameters(unit)):
            # torch gathers and scatters nothing, and sums over copies itself.
            unit.set_all_reduce_hook(partial(_scale_in_place, factor=factor))
            return
        reduce: Any = ScaledReduceScatter(averaging, wire)
        if self._exchanges:
            may_wait = partial(self._may_wait, unit)
            reduce = UnitReduceScatter(self._reductions, factor, wire, may_wait)
            unit.set_custom_all_gather(cast(Any, self._all_gather))
        if self._quantizes_gradients:
            reduce = QuantizedReduceScatter(factor)
        unit.set_custom_reduce_scatter(reduce)

    def _quantize_gathers(self, effective: Effective) -> None:
        """Let units that are gathered around their use be gathered in 8 bits, as configured."""
        for unit in self._resharded_units():
            parts = [
                Part(record.flat_shard.numel(), self._is_quantized(record, effective))
                for record in sharded_parameters(unit)
            ]
            if any(part.is_quantized for part in parts) and self.mesh.size(-1) > 1:
                unit.set_custom_all_gather(cast(Any, QuantizedAllGather(parts)))

    def _is_quantized(self, record: ShardedParameter, effective: Effective) -> bool:
        zero, width = effective.zero, self.policy.compute.itemsize
        is_chosen = zero.quantized_weights or (
            zero.quantized_frozen_weights and not record.shard.requires_grad
        )
        size = record.flat_shard.numel()
        is_smaller = tiles.quantized_bytes(size, tiles.GATHERED_BITS) < size * width
        return is_chosen and is_smaller and record.owner not in self._packed

    def _may_wait(self, unit: FSDPModule) -> bool:
        """Whether the reduced gradients of ``unit`` are not read before backward ends.

        They are read by a cast, a second reduction over replicas, or accumulation.
        """
        return (
            (self._topology.expert_state_mesh if _has_experts(unit) else self.mesh).ndim == 1
            and self._offload is None
            and self.offloaded_gradients is None
            and all(
                record.shard.grad is None and record.shard.dtype is self._reduce_dtype
                for record in sharded_parameters(unit)
            )
        )

    def _host_masters(self, effective: Effective) -> HostMasters | None:
        """Return host masters for an offloaded optimizer, if gradients are reduced in 16 bits.

        With divided experts, whose shards are others' than the rest, shards stay fp32.
        """
        policy, offload = self.policy, OffloadSettings.of(effective)
        if self._topology.mesh.expert > 1:
            return None
        if offload is None or not policy.copies_weights or policy.wire is not policy.compute:
            return None
        pin, names = offload.pin_memory and can_pin(), original_names(self.module)
        rank, ranks = self._topology.rank("states"), self._topology.size("states")
        return HostMasters(names, rank, ranks, dtype=policy.compute, pin=pin)

    def _set_dtypes_of_meta(self, module: nn.Module, masters: HostMasters | None) -> None:
        """Give the meta parameters of partitioned ones the dtype of their future shards."""
        for parameter in module.parameters():
            if parameter.is_meta:
                has_master = masters is not None and masters.have(parameter)
                dtype = self.policy.compute if has_master else self.policy.storage_dtype(parameter)
                parameter.data = parameter.data.to(dtype)

    def _move_shards_to_files(self) -> None:
        if self._offload is None or self._offload.tier != "nvme":
            return
        if not self._offload.nvme_path:
            raise ValueError("zero_optimization.offload_param.device is nvme: set nvme_path")
        move_shards_to_files(self._units(), self._offload.nvme_path, self._offload.max_in_cpu)

    def _keep_unsharded(self, unit: FSDPModule) -> None:
        unit.set_reshard_after_backward(False, recurse=False)
        self.unsharded.append(unit)

    def _ensure_gathered(self) -> None:
        """Gather the unsharded units one by one, so that only one has separate shards at a time."""
        for unit in self.unsharded:
            unit.unshard()
            if self._offload is None:
                self._unsharded_units.alias_full(unit)

    @property
    def root(self) -> FSDPModule:
        return as_unit(self.module)

    @property
    def _state_group(self) -> dist.ProcessGroup | None:
        return self._topology.group("states") if self._topology.size("states") > 1 else None

    @property
    def _expert_group(self) -> dist.ProcessGroup | None:
        mesh = self._topology.expert_state_mesh
        return mesh.get_group(mesh.ndim - 1) if mesh.size(mesh.ndim - 1) > 1 else None

    def _shard_group(self, parameter: ShardedParameter) -> dist.ProcessGroup | None:
        """Return the ranks that share a parameter's shards; None for one rank."""
        return self._expert_group if is_of_experts(parameter.shard) else self._state_group

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

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self._device.type != "cpu":
            args, kwargs = inputs_to(self._device, args, kwargs)
        self._may_be_gathered = True
        outputs = self.module(*args, **kwargs)
        if self._offload is not None and not torch.is_grad_enabled():
            # Its gathers may still be copying pinned shards, which a script, a load or a step may
            # write next. (A step waits for the gradients, which come after those of its backward.)
            drop_unused_gathers(self._resharded_units())
            wait_for_stream(self._device)
        return outputs

    def before_backward(self, loss: Tensor, reduce: bool) -> None:
        del loss
        reduce = reduce or (self.reduces_every_micro_step and not self._defers_reduction)
        if reduce is not self._reduces:  # visits every module
            self.root.set_requires_gradient_sync(reduce)
            self._reduces = reduce

    @contextmanager
    def reduced_at_end(self) -> Iterator[None]:
        self._defers_reduction = True
        try:
            yield
        finally:
            self._defers_reduction = False
        self.root.set_requires_gradient_sync(True)
        self._reduces = True
        for unit in self._units():
            reduce_late_gradients(unit)
        self.after_backward()

    @torch.no_grad()
    def after_backward(self) -> None:
        self._may_be_gathered = False
        self._reductions.finish()
        self._reductions.buffers.clear()
        self._all_gather.release()
        if self._direct_use is not None:
            self._direct_use.after_backward(reduced=True)
        self._indivisible.accumulate()
        if self._reduces:
            self._indivisible.reduce()
            if self.offloaded_gradients is not None:
                self.offloaded_gradients.accumulate_late()
        if self._reduces and self._rounds_sums and self.offloaded_gradients is None:
            if self._has_sums or self.policy.wire is not self.policy.accumulation:
                self._round_sums()
            self._has_sums = True

    def _round_sums(self) -> None:
        """Round the sums of a window to the accumulation dtype."""
        sums = [gradient for _, gradient in self.gradients()]
        if sums:  # empty if all of this backward's reductions are deferred
            foreach_copy_(sums, [total.to(self.policy.accumulation) for total in sums])

    def unreduced(self) -> Mapping[str, Tensor] | None:
        if self._reduces:
            return None
        names = {master: name for name, master in self.masters.items()}
        sums = {
            names[record.shard]: parts[0]
            if len(parts) == 1
            else torch.stack([part.float() for part in parts]).sum(0)
            for record in sharded_parameters_of(self._units())
            if (parts := list(record.unreduced()))
        }
        replicated = self._indivisible.unreduced()
        return sums | {names[master]: total for master, total in replicated.items()}

    def drop_reduced(self) -> None:
        super().drop_reduced()
        self._has_sums = False
        self._order.restart()

    def drop_gradients(self) -> None:
        super().drop_gradients()
        self._indivisible.drop_unreduced()
        for record in sharded_parameters_of(self._units()) if self.has_model else ():
            record.drop_unreduced()

    def counted_in_norm(self, gradients: Mapping[str, Tensor]) -> list[Tensor]:
        """Leave out those that another rank of the norm's group has too."""
        is_first = self._topology.rank("copy") == 0
        is_first_part = self._topology.rank("tensor") == 0
        copy, expert_copy = self._copies
        return [
            gradient
            for name, gradient in gradients.items()
            if (is_first or isinstance(self.masters[name], DTensor))
            and (is_first_part or is_split(self.masters[name]))
            and (expert_copy if is_of_experts(self.masters[name]) else copy) == 0
        ]

    def after_update(self, *, frozen: bool = True) -> None:
        if self._may_be_gathered:
            self.release()  # they have the old values
        self._unsharded_units.refresh(frozen=frozen)
        self._indivisible.refresh()

    def before_move(self) -> None:
        for record in sharded_parameters_of(self._units()):
            record.set_view(record.shard)

    def restore(self) -> None:
        for unit in self.unsharded:
            unit.reshard()
        self._ensure_gathered()
        self._indivisible.restore()
        if self._is_stage_3:
            self._set_views()

    def abort_pass(self, *, in_backward: bool) -> None:
        self._reductions.finish()
        self._reductions.buffers.clear()
        abort_pass(self.root)
        for record in sharded_parameters_of(self._units()) if in_backward else ():
            record.drop_unreduced()
        self._all_gather.release()
        if self._direct_use is not None:
            self._direct_use.after_backward(reduced=False)
        self._ensure_gathered()

    @contextmanager
    def gathered(self, once: bool | None = None) -> Iterator[bool]:
        units = self._resharded_units()
        if self._keeps_gathered or not units:
            yield True
            return
        self.release()
        if once is None:
            once = fit(units, self.policy.compute, self._device, self._topology.group("all"))
        if not once:
            yield False
            return
        self._keeps_gathered = self._may_be_gathered = True
        try:
            with kept_gathered(units):
                self._all_gather.release()
                yield True
        finally:
            self._keeps_gathered = False

    def release(self) -> None:
        units = self._resharded_units()
        drop_unused_gathers(units)
        for unit in units:
            unit.reshard()
        self._may_be_gathered = False

    def prepare_for_compile(self) -> None:
        if self._direct_use is not None:
            self._direct_use.remove()
            self._direct_use = None

    def shard(self, name: str, tensor: Tensor) -> Tensor:
        master = self.masters[name]
        if not isinstance(master, DTensor):
            return tensor
        return as_shard(local_slice_of(tensor, master).to(master.device, copy=True), master)


def _scale_in_place(gradients: Tensor, *, factor: float) -> None:
    gradients.mul_(factor)


def _has_experts(unit: FSDPModule) -> bool:
    """Whether the unit has divided experts, and nothing else."""
    return any(is_of_experts(record.shard) for record in sharded_parameters(unit))
