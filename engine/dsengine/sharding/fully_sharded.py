"""Stages 1 to 3, built on ``fully_shard``: how parameters are stored and gathered.

``sharded_gradients.py`` has the gradients.

[Note: order of construction]
Each step of ``FullySharded.__init__`` depends on the previous ones. Leaf marks are read while
modules have their own classes: ``fully_shard`` changes them. Partitioned parameters of zero.Init
are replaced by meta parameters before the module is sharded, and restored right after. Inner units
are created before the root, which would otherwise take their parameters. Masters are copied to the
host from the unit being sharded, so its shards are 16-bit from the start. Shards are moved to files
before the first gather, where torch fixes dtypes and memory. ``masters`` are read once no shard is
replaced any more; gathers are set once all units exist; only then are unsharded units gathered.
Direct-use detection is last, because it requires sharded units.

[Note: generation]
A forward at stage 3 gathers every unit, and generation runs a forward per token. So the units are
gathered once before, if they fit into the free memory of every rank, and stay gathered; then ranks
do not depend on each other, and one may generate more tokens than another. Otherwise each forward
gathers block by block, and all ranks must run equally many.
"""

from collections.abc import Iterator, Sequence
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
from dsengine.communication.exchange import UnitAllGather, can_exchange
from dsengine.communication.quantized import Part, QuantizedAllGather
from dsengine.optimizers.precision import DTYPES, Policy
from dsengine.parameters.quantized import quantized_layers
from dsengine.parameters.shards import is_of_experts, local_slice_of
from dsengine.sharding.base import Sharding, original_names
from dsengine.sharding.direct_use import DirectUse
from dsengine.sharding.indivisible import Indivisible
from dsengine.sharding.leaves import (
    leaves_across_units,
    mark_configured,
    reduce_unused_of_leaves,
    reduce_unused_of_lists,
)
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
from dsengine.tiers.memory import available_on_node, can_pin
from dsengine.topology import Topology, world_size
from dsengine.torch_private.removal import generate_alone
from dsengine.torch_private.tensors import as_shard
from dsengine.torch_private.units import (
    ShardedParameter,
    abort_pass,
    drop_unused_gathers,
    initialize_root,
    inputs_to,
    kept_gathered,
    sharded_parameters,
    sharded_parameters_of,
    units_of,
    units_without,
    unshard_asynchronously,
)

SHARE_OF_FREE_MEMORY = 0.75
"""The rest is for activations and the KV cache."""


def fit(
    units: Sequence[FSDPModule],
    dtype: torch.dtype,
    device: torch.device,
    group: dist.ProcessGroup,
) -> bool:
    """Whether the full parameters of ``units`` fit on every rank of ``group``. Collective.

    ``dtype``: of gathered floating-point parameters.
    """
    needed = 0
    for record in sharded_parameters_of(units):
        shard = record.flat_shard
        kept = dtype if shard.is_floating_point() else shard.dtype
        needed += shard.numel() * record.ranks * kept.itemsize
    fits = needed <= SHARE_OF_FREE_MEMORY * _free_memory(device)
    answers = [fits] * group.size()
    dist.all_gather_object(answers, fits, group=group)
    return all(answers)


def _free_memory(device: torch.device) -> float:
    """Return the bytes that this rank can still allocate on ``device``."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return free + cached
    available = available_on_node()
    return float("inf") if available is None else available / world_size()


class FullySharded(Sharding):
    """The plan's units under ``fully_shard``: how parameters are stored and gathered.

    In mixed precision the shards of trained parameters are fp32 and gathered units have the compute
    dtype; frozen weights are stored in the compute dtype, or in their own if it is narrower. A unit
    that the plan does not gather around its use stays unsharded between steps: it is not resharded
    in forward or backward, and is refreshed after the optimizer has updated the shards.

    At stages 1 and 2 every unit stays unsharded, with the module's own parameters in the compute
    dtype: submodules can be called, weights read and written with ``load_state_dict``, and a state
    dict taken on any single rank, without collectives.
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
        self.topology = topology
        self.mesh = topology.state_mesh
        self._device = device
        zero = plan.effective.zero
        self._is_stage_3 = zero.stage == 3
        self.reduce_dtype = DTYPES[plan.storage.gradient]
        self.offload = zero.offload_param if self._is_stage_3 else None
        self._keeps_gathered = False
        self._may_be_gathered = False
        """Whether units may still be gathered from a forward without a backward."""
        self.unsharded: list[FSDPModule] = []
        """Units that stay unsharded between steps, one module for each."""
        self._views: dict[nn.Parameter, nn.Parameter] = {}
        """Compute-dtype views that modules have instead of fp32 shards, by shard."""
        units = plan.stages[topology.rank("pipeline")].units
        heads = self._shard_model(plan, units)
        self._configure_gathers(units, heads)
        if self._is_stage_3:
            self._quantize_gathers(plan.effective)
            install_parameter_attributes()
            self._publish_status(watches=zero.enable_sanity_checks)
            self._set_views()
        elif topology.mesh.expert == 1:
            generate_alone(module)
        if self._is_stage_3 or topology.mesh.splits_weights:
            refuse_saving_shards(list(self.module.parameters()))
        resharded = self._resharded_units()
        self._direct_use = DirectUse(self.module, resharded) if resharded else None

    def _shard_model(self, plan: Plan, units: Sequence[PlannedUnit]) -> list[FSDPModule | None]:
        """Shard the model and set ``masters``; return the head module of each planned unit."""
        module = self.module
        originals = original_names(module)
        masters = self._host_masters(plan)
        # While modules have their own classes.
        mark_configured(module, plan.effective.zero.leaf_module or {})
        partitioned = replace_partitioned(module)
        self._set_dtypes_of_meta(module, masters)
        self.indivisible = Indivisible(module, self.topology.group("gradients"))
        heads = self._shard_units(units, masters)
        reduce_unused_of_leaves(module, self.units())
        if plan.effective.zero.ignore_unused_parameters:
            reduce_unused_of_lists(module, self.units())
        attach_shards(module, partitioned, self._device, masters)
        self.indivisible.initialize(module, self._device, self.policy)
        if masters is not None:
            self.host_masters = masters.parts
        self._move_shards_to_files()
        replicated = self.indivisible.masters
        self.masters = {name: replicated.get(p, p) for name, p in module.named_parameters()}
        register_model(module, originals, self.masters)
        return heads

    def _shard_units(
        self, units: Sequence[PlannedUnit], masters: HostMasters | None
    ) -> list[FSDPModule | None]:
        sharder = UnitSharder(
            self.module,
            self.mesh,
            self.topology.group("gradients"),
            self.topology.expert_state_mesh if self.topology.mesh.expert > 1 else None,
            self._device,
            self.policy,
            # Scripts cast inputs to the dtype of a weight, which between steps is the shards'.
            cast_inputs=self._is_stage_3,
            reduce_dtype=self.reduce_dtype,
            offload=self.offload,
            masters=masters,
            ignored=self.indivisible.parameters,
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
        self.unsharded += sharder.unsharded
        if not self._is_stage_3 and self.root not in self.unsharded:
            self.unsharded.append(self.root)
        for head in self.unsharded:
            head.set_reshard_after_backward(False, recurse=False)
        return heads

    def _configure_gathers(
        self, units: Sequence[PlannedUnit], heads: Sequence[FSDPModule | None]
    ) -> None:
        """Set how units are gathered; gather the unsharded ones."""
        self.exchanges = can_exchange(self._state_group, self._device)
        self._packed = {layer.module for layer in quantized_layers(self.module)}
        self._all_gather = UnitAllGather()
        for unit in self.units() if self.exchanges else ():
            # torch gathers nothing on one rank.
            if any(record.ranks > 1 for record in sharded_parameters(unit)):
                unit.set_custom_all_gather(cast(Any, self._all_gather))
        set_prefetch(units, heads)
        self._unsharded_units = UnshardedUnits(
            self.unsharded, self._shard_group, exchanges=self.exchanges
        )
        self._ensure_gathered()
        for unit in self.unsharded:
            self._unsharded_units.use_full_state_dicts(unit)
        if self.exchanges:
            unshard_asynchronously(self.root)
        initialize_root(self.root)

    def _publish_status(self, *, watches: bool) -> None:
        """Set DeepSpeed's status attributes, which scripts read from every parameter of stage 3."""
        for parameter in (*self.module.parameters(), *self.masters.values()) if watches else ():
            watch_writes(parameter)
        for parameter in self.indivisible.parameters:
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

    def units(self) -> list[FSDPModule]:
        return units_of(self.module)

    def _resharded_units(self) -> list[FSDPModule]:
        """Return the units that are sharded between steps."""
        return units_without(self.units(), self.unsharded)

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

    def _host_masters(self, plan: Plan) -> HostMasters | None:
        """Return what copies the masters to the host while units are sharded, if planned."""
        offload = plan.effective.zero.offload_optimizer
        if offload is None or not plan.storage.masters_on_host:
            return None
        pin, names = offload.pin_memory and can_pin(), original_names(self.module)
        rank, ranks = self.topology.rank("states"), self.topology.size("states")
        return HostMasters(names, rank, ranks, dtype=DTYPES[plan.storage.shard], pin=pin)

    def _set_dtypes_of_meta(self, module: nn.Module, masters: HostMasters | None) -> None:
        """Give the meta parameters of partitioned ones the dtype of their future shards."""
        for parameter in module.parameters():
            if parameter.is_meta:
                has_master = masters is not None and masters.have(parameter)
                dtype = self.policy.compute if has_master else self.policy.storage_dtype(parameter)
                parameter.data = parameter.data.to(dtype)

    def _move_shards_to_files(self) -> None:
        if self.offload is None or self.offload.tier != "nvme":
            return
        if not self.offload.nvme_path:
            raise ValueError("zero_optimization.offload_param.device is nvme: set nvme_path")
        move_shards_to_files(self.units(), self.offload.nvme_path, self.offload.max_in_cpu)

    def _ensure_gathered(self) -> None:
        """Gather the unsharded units one by one, so that only one has separate shards at a time."""
        for unit in self.unsharded:
            unit.unshard()
            if self.offload is None:
                self._unsharded_units.alias_full(unit)

    @property
    def root(self) -> FSDPModule:
        return as_unit(self.module)

    @property
    def _state_group(self) -> dist.ProcessGroup | None:
        return self.topology.group("states") if self.topology.size("states") > 1 else None

    @property
    def _expert_group(self) -> dist.ProcessGroup | None:
        mesh = self.topology.expert_state_mesh
        return mesh.get_group(mesh.ndim - 1) if mesh.size(mesh.ndim - 1) > 1 else None

    def _shard_group(self, parameter: ShardedParameter) -> dist.ProcessGroup | None:
        """Return the ranks that share a parameter's shards; None for one rank."""
        return self._expert_group if is_of_experts(parameter.shard) else self._state_group

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self._device.type != "cpu":
            args, kwargs = inputs_to(self._device, args, kwargs)
        self._may_be_gathered = True
        outputs = self.module(*args, **kwargs)
        if self.offload is not None and not torch.is_grad_enabled():
            # Its gathers may still be copying pinned shards, which a script, a load or a step may
            # write next. (A step waits for the gradients, which come after those of its backward.)
            drop_unused_gathers(self._resharded_units())
            wait_for_stream(self._device)
        return outputs

    def after_backward(self) -> None:
        """Free what forward and backward have gathered."""
        self._may_be_gathered = False
        self._free_gathered(reduced=True)

    def _free_gathered(self, *, reduced: bool) -> None:
        """``reduced``: whether the gradients of directly used units have to be reduced."""
        self._all_gather.release()
        if self._direct_use is not None:
            self._direct_use.after_backward(reduced=reduced)

    def after_update(self, *, frozen: bool = True) -> None:
        if self._may_be_gathered:
            self.release()  # they have the old values
        self._unsharded_units.refresh(frozen=frozen)
        self.indivisible.refresh()

    def before_move(self) -> None:
        for record in sharded_parameters_of(self.units()):
            record.set_view(record.shard)

    def restore(self) -> None:
        for unit in self.unsharded:
            unit.reshard()
        self._ensure_gathered()
        self.indivisible.restore()
        if self._is_stage_3:
            self._set_views()

    def abort_pass(self) -> None:
        """Reset after a failed pass, so that forward can run again."""
        abort_pass(self.root)
        self._free_gathered(reduced=False)
        self._ensure_gathered()

    @contextmanager
    def gathered(self, once: bool | None = None) -> Iterator[bool]:
        units = self._resharded_units()
        if self._keeps_gathered or not units:
            yield True
            return
        self.release()
        if once is None:
            once = fit(units, self.policy.compute, self._device, self.topology.group("all"))
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
