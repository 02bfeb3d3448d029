"""Stages 1 to 3 on ``fully_shard``.

[Note: order of construction]
Each step of ``FullySharded.__init__`` needs the one before and rules out the one after. Marks of
leaves are read while classes have their own names: ``fully_shard`` gives a module another class.
Pieces of zero.Init leave the module before it is divided (meta parameters take their place) and
come back right after. Inner units come before the root, or the root would take their parameters.
Masters go to the host from the unit that is being divided, so that its shards have 16 bits from
the start. Shards go into files before the first gather: there torch settles dtypes and memory.
``masters`` are read when no shard is replaced any more, collectives are set when there is no unit
to come, and only then are units gathered that are whole at rest. A watch over direct use is last,
for it counts on units that are divided.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.distributed.tensor import DTensor

from dsconfig import Effective, Plan, PlannedUnit
from dsengine.communication.exchange import (
    Reductions,
    UnitAllGather,
    UnitReduceScatter,
    can_exchange,
    start_gather,
)
from dsengine.optimizers.precision import Policy
from dsengine.parameters.shards import local_slice_of
from dsengine.sharding.base import Sharding
from dsengine.sharding.direct_use import DirectUse
from dsengine.sharding.indivisible import Indivisible
from dsengine.sharding.leaves import (
    leaves_in_parts,
    mark_configured,
    reduce_unused_of_leaves,
    reduce_unused_of_lists,
)
from dsengine.sharding.mesh import SHARD
from dsengine.sharding.reduction import Averaging, ScaledReduceScatter
from dsengine.sharding.to_device import on_device
from dsengine.sharding.unsharded_units import UnshardedUnits
from dsengine.sharding.zero.adoption import put_pieces, take_pieces
from dsengine.sharding.zero.dtype_view import restore_view, view_as_dtype
from dsengine.sharding.zero.external import uses_external
from dsengine.sharding.zero.registry import remember
from dsengine.sharding.zero.status import set_gathered_attributes, watch_writes
from dsengine.tiers.mapped import move_shards_to_files
from dsengine.tiers.masters import HostMasters
from dsengine.tiers.settings import OffloadSettings
from dsengine.torch_private import (
    abort_pass,
    all_gather_flat,
    as_shard,
    foreach_copy_,
    initialize_root,
    reduce_late_gradients,
    reshard_within,
    sharded_parameters,
    sharded_parameters_of,
    units_of,
    unshard_asynchronously,
)

CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)
"""Modules that are never called, so no hook of theirs would gather anything."""


class FullySharded(Sharding):
    """Units of the plan under ``fully_shard``; the optimizer updates shards.

    In mixed precision the shards of what is trained are fp32 and a gathered unit is of the compute
    dtype; frozen weights rest in that, or in their own where it is narrower. A unit
    the plan does not gather around its use is whole at rest: never resharded in forward or
    backward, resharded and gathered once after the optimizer has updated the shards.
    """

    cast_inputs = True
    """A unit's floating-point inputs are cast to its dtype: scripts cast them to the dtype of
    a weight, and at rest that is the dtype of the shards."""

    def __init__(
        self,
        module: nn.Module,
        plan: Plan,
        policy: Policy,
        mesh: DeviceMesh,
        device: torch.device,
    ) -> None:
        super().__init__(module)
        self.policy = policy
        self.mesh = mesh
        self._sharing = mesh if mesh.ndim == 1 else mesh[SHARD]
        """The ranks that share one copy of the states."""
        self._device = device
        zero = plan.effective.zero
        self.reduces_every_micro_step = zero.reduces_every_pass
        self._reduce_dtype = policy.reduced_from(whole_window=not self.reduces_every_micro_step)
        self._rounds_sums = (
            self.reduces_every_micro_step and policy.accumulation is not torch.float32
        )
        self._has_sums = False
        """Gradients were reduced in this window; a script may set where windows end."""
        self._defers = False
        self._reduces = True
        self._is_stage_3 = zero.stage == 3
        self._offload = zero.offload_param if self._is_stage_3 else None
        self._reshard_meshes: dict[int, Any] = {}
        """By number of ranks: where units reshard to fewer than all."""
        self.whole: list[FSDPModule] = []
        """Units that are whole at rest, one module for each."""
        self._in_leaves: set[nn.Module] = set()
        self._shown: dict[nn.Parameter, nn.Parameter] = {}
        """By shard, what modules have in its place."""
        averaging = Averaging.of(plan.effective, plan.mesh.shard, plan.mesh.replicate)
        heads = self._divide(plan, averaging)
        self._gather_as_planned(plan.units, heads, averaging)
        if self._is_stage_3:
            block = plan.effective.config.get("zero_optimization", {})
            self._tell_whole(watches=bool(block.get("enable_sanity_checks")))
            self._show_compute_dtype()
        gathered = self._gathered_in_use()
        self._direct_use = DirectUse(self.module, gathered) if gathered else None

    def _divide(self, plan: Plan, averaging: Averaging) -> list[FSDPModule | None]:
        """Divide the model, and let masters be what is stepped; return what stands for each unit
        of the plan."""
        module = self.module
        self._masters = self._host_masters(plan.effective)
        mark_configured(module, plan.effective.config)  # while classes have their own names
        built_in_pieces = take_pieces(module)
        self._set_dtypes_of_meta(module)
        self._indivisible = Indivisible(module, averaging)
        for leaf in leaves_in_parts(module, plan.units):
            self._shard_leaf(leaf)
        heads = [self._shard_unit(unit) for unit in plan.units]
        if not isinstance(module, FSDPModule):
            self._shard([module], reshard_after_forward=False, cast_inputs=False)
        reduce_unused_of_leaves(module, self._units())
        if plan.effective.zero.ignore_unused_parameters:
            reduce_unused_of_lists(module, self._units())
        put_pieces(module, built_in_pieces, self._device, self._masters)
        self._indivisible.settle(module, self._device, self.policy)
        if self._masters is not None:
            self.host_masters = self._masters.parts
        self._move_shards_to_files()
        apart = self._indivisible.masters
        self.masters = {name: apart.get(p, p) for name, p in module.named_parameters()}
        remember(module, self.originals, self.masters)
        return heads

    def _gather_as_planned(
        self,
        units: Sequence[PlannedUnit],
        heads: Sequence[FSDPModule | None],
        averaging: Averaging,
    ) -> None:
        """Set how units are gathered and reduced; gather those that are whole at rest."""
        self._exchanges = can_exchange(self.norm_group, self._device)
        self._all_gather = UnitAllGather()
        self._reductions = Reductions()
        self._set_collectives(averaging)
        _set_prefetch(units, heads)
        gather = start_gather if self._exchanges else all_gather_flat
        self._at_rest = UnshardedUnits(self.whole, self.norm_group, gather)
        self._gather()
        if self._exchanges:
            unshard_asynchronously(self.root)
        initialize_root(self.root)

    def _tell_whole(self, *, watches: bool) -> None:
        """Let what stays whole say so: scripts ask every parameter of stage 3."""
        for each in (*self.module.parameters(), *self.masters.values()) if watches else ():
            watch_writes(each)
        for each in self._indivisible.parameters:
            set_gathered_attributes(each, each, persists=True)
        for each in sharded_parameters_of(self.whole):
            set_gathered_attributes(each.whole, each.shard, persists=True)

    def _show_compute_dtype(self) -> None:
        """Let modules show what is gathered in its use in the dtype in which it is gathered."""
        compute = self.policy.compute
        for each in sharded_parameters_of(self._gathered_in_use()):
            shard = each.shard
            if self.policy.is_mixed and shard.is_floating_point() and shard.dtype is not compute:
                if shard not in self._shown or self._shown[shard].device != shard.device:
                    self._shown[shard] = view_as_dtype(shard, compute)
                keep = partial(restore_view, shard=shard, dtype=compute)
                each.show(self._shown[shard], keep)

    def _units(self) -> list[FSDPModule]:
        return units_of(self.module)

    def _gathered_in_use(self) -> list[FSDPModule]:
        """The units that are not whole at rest."""
        return [unit for unit in self._units() if unit not in self.whole]

    def _set_collectives(self, averaging: Averaging) -> None:
        """Exchange pieces over gloo; elsewhere see to what is not a plain mean."""
        wire = self.policy.wire
        if averaging.is_plain_mean and not self._exchanges and self._reduce_dtype is wire:
            return
        for unit in self._units():
            unit.set_gradient_divide_factor(1.0)
            unit.set_force_sum_reduction_for_comms(True)
            reduce: Any = ScaledReduceScatter(averaging, wire)
            if self._exchanges:
                factor, may_wait = averaging.before * averaging.after, partial(self._may_wait, unit)
                reduce = UnitReduceScatter(self._reductions, factor, wire, may_wait)
                unit.set_custom_all_gather(cast(Any, self._all_gather))
            unit.set_custom_reduce_scatter(reduce)

    def _may_wait(self, unit: FSDPModule) -> bool:
        """Whether nothing reads the reduced gradients of ``unit`` before backward ends.

        A cast, a second reduction over replicas, and the sum with earlier gradients would.
        """
        return (
            self.mesh.ndim == 1
            and self._offload is None
            and self.offloaded_gradients is None
            and all(
                each.shard.grad is None and each.shard.dtype is self._reduce_dtype
                for each in sharded_parameters(unit)
            )
        )

    def _shard_leaf(self, leaf: nn.Module) -> None:
        """Make one unit of a leaf and all below it."""
        self._in_leaves.update(leaf.modules())
        is_root = leaf is self.module
        self._shard(
            [leaf],
            reshard_after_forward=not is_root,
            cast_inputs=self.cast_inputs and not is_root,
        )

    def _shard_unit(self, unit: PlannedUnit) -> FSDPModule | None:
        """Shard one unit; return the module that stands for it, None when it has none.

        A layer that a model has under several names is of the unit of the first of them.
        """
        named = dict.fromkeys(self.module.get_submodule(name) for name in unit.modules)
        modules = [
            each
            for each in named
            if each not in self._in_leaves and not isinstance(each, (*CONTAINERS, FSDPModule))
        ]
        if not modules:
            return None
        is_root = self.module in modules
        gather = unit.gather and (is_root or not uses_external(*modules))
        self._shard(
            modules,
            reshard_after_forward=unit.reshard_after_forward if gather else False,
            cast_inputs=self.cast_inputs and not is_root,
        )
        if not gather:
            self._keep_whole(modules[0])
        return _unit(modules[0])

    def _shard(
        self, modules: list[nn.Module], *, reshard_after_forward: bool | int, cast_inputs: bool
    ) -> None:
        to_fewer = not isinstance(reshard_after_forward, bool)
        known = self._reshard_meshes.get(reshard_after_forward) if to_fewer else None
        with on_device(modules, self._device, self.policy.storage_dtype) as whole:
            if self._masters is not None:
                self._masters.take(whole)
            fully_shard(
                modules if len(modules) > 1 else modules[0],  # type: ignore[arg-type]
                mesh=self.mesh,
                reshard_after_forward=True if known else reshard_after_forward,
                mp_policy=self._mixed_precision(cast_inputs),
                offload_policy=self._offload_policy(),
                ignored_params=set(self._indivisible.parameters),
            )
        for each in modules:
            _keep_class_name(type(each))
        if to_fewer:
            self._reshard_meshes[reshard_after_forward] = reshard_within(_unit(modules[0]), known)

    def _mixed_precision(self, cast_inputs: bool) -> MixedPrecisionPolicy:
        compute, reduce = self.policy.compute, self._reduce_dtype
        # Left out it means the dtype of the computation, since torch 2.15 that of the shards.
        named = self.policy.is_mixed or reduce is not compute
        return MixedPrecisionPolicy(
            param_dtype=compute if self.policy.is_mixed else None,
            reduce_dtype=reduce if named else None,
            cast_forward_inputs=cast_inputs,
        )

    def _offload_policy(self) -> OffloadPolicy:
        if self._offload is None:
            return OffloadPolicy()
        pin = self._offload.pin_memory and torch.cuda.is_available()
        return CPUOffloadPolicy(pin_memory=pin and self._offload.tier != "nvme")

    def _host_masters(self, effective: Effective) -> HostMasters | None:
        """Masters of an offloaded optimizer, where reduced gradients need no more than 16 bits."""
        policy, offload = self.policy, OffloadSettings.of(effective)
        if offload is None or not policy.is_mixed or policy.wire is not policy.compute:
            return None
        pin = offload.pin_memory and torch.cuda.is_available()
        rank, ranks = self._sharing.get_local_rank(), self._sharing.size()
        return HostMasters(self.originals, rank, ranks, dtype=policy.compute, pin=pin)

    def _set_dtypes_of_meta(self, module: nn.Module) -> None:
        """What stands for pieces of zero.Init has the dtype that the shards will have."""
        for parameter in module.parameters():
            if parameter.is_meta:
                leaves = self._masters is not None and self._masters.have(parameter)
                dtype = self.policy.compute if leaves else self.policy.storage_dtype(parameter)
                parameter.data = parameter.data.to(dtype)

    def _move_shards_to_files(self) -> None:
        if self._offload is None or self._offload.tier != "nvme":
            return
        if not self._offload.nvme_path:
            raise ValueError("zero_optimization.offload_param.device is nvme: give nvme_path")
        move_shards_to_files(self._units(), self._offload.nvme_path, self._offload.max_in_cpu)

    def _keep_whole(self, module: nn.Module) -> None:
        unit = _unit(module)
        unit.set_reshard_after_backward(False, recurse=False)
        self.whole.append(unit)

    def _gather(self) -> None:
        """Make units whole one by one: only of one are there shards beside what is whole."""
        for unit in self.whole:
            unit.unshard()
            if self._offload is None:
                self._at_rest.settle(unit)

    @property
    def root(self) -> FSDPModule:
        return _unit(self.module)

    @property
    def norm_group(self) -> dist.ProcessGroup | None:
        return self._sharing.get_group() if self._sharing.size() > 1 else None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)

    def before_backward(self, loss: Tensor, reduce: bool) -> None:
        del loss
        reduce = reduce or (self.reduces_every_micro_step and not self._defers)
        if reduce is not self._reduces:  # it visits every module
            self.root.set_requires_gradient_sync(reduce)
            self._reduces = reduce

    @contextmanager
    def reduced_at_end(self) -> Iterator[None]:
        self._defers = True
        try:
            yield
        finally:
            self._defers = False
        self.root.set_requires_gradient_sync(True)
        self._reduces = True
        for unit in self._units():
            reduce_late_gradients(unit)
        self.after_backward()

    @torch.no_grad()
    def after_backward(self) -> None:
        self._reductions.finish()
        self._reductions.buffers.clear()
        self._all_gather.release()
        if self._direct_use is not None:
            self._direct_use.after_backward(reduced=True)
        self._indivisible.take_in()
        if self._reduces:
            self._indivisible.reduce()
            if self.offloaded_gradients is not None:
                self.offloaded_gradients.take_in()
        if self._reduces and self._rounds_sums and self.offloaded_gradients is None:
            if self._has_sums or self.policy.wire is not self.policy.accumulation:
                self._round_sums()
            self._has_sums = True

    def _round_sums(self) -> None:
        """Keep the sum over a window to the precision of the accumulation dtype."""
        sums = [gradient for _, gradient in self.gradients()]
        if sums:  # none where all of this backward's wait
            foreach_copy_(sums, [each.to(self.policy.accumulation) for each in sums])

    def unreduced(self) -> Mapping[str, Tensor] | None:
        if self._reduces:
            return None
        names = {master: name for name, master in self.masters.items()}
        sums = {
            names[each.shard]: held[0]
            if len(held) == 1
            else torch.stack([h.float() for h in held]).sum(0)
            for each in sharded_parameters_of(self._units())
            if (held := list(each.unreduced()))
        }
        whole = self._indivisible.unreduced()
        return sums | {names[master]: total for master, total in whole.items()}

    def drop_reduced(self) -> None:
        super().drop_reduced()
        self._has_sums = False

    def drop_gradients(self) -> None:
        super().drop_gradients()
        self._indivisible.drop_unreduced()
        for each in sharded_parameters_of(self._units()) if self.has_model else ():
            each.drop_unreduced()

    def counted_in_norm(self, gradients: list[Tensor]) -> list[Tensor]:
        group = self.norm_group
        if not self._indivisible.parameters or group is None or group.rank() == 0:
            return gradients
        return [each for each in gradients if each.dim() > 0]

    def after_update(self, *, frozen: bool = True) -> None:
        self._at_rest.refresh(frozen=frozen)
        self._indivisible.refresh()

    def before_move(self) -> None:
        for each in sharded_parameters_of(self._units()):
            each.show(each.shard)

    def restore(self) -> None:
        for unit in self.whole:
            unit.reshard()
        self._gather()
        self._indivisible.restore()
        if self._is_stage_3:
            self._show_compute_dtype()

    def abort_pass(self, *, in_backward: bool) -> None:
        self._reductions.finish()
        self._reductions.buffers.clear()
        abort_pass(self.root)
        for each in sharded_parameters_of(self._units()) if in_backward else ():
            each.drop_unreduced()
        self._all_gather.release()
        if self._direct_use is not None:
            self._direct_use.after_backward(reduced=False)
        self._gather()

    def release(self) -> None:
        for unit in self._gathered_in_use():
            unit.reshard()

    def prepare_for_compile(self) -> None:
        if self._direct_use is not None:
            self._direct_use.stop()
            self._direct_use = None

    def divide(self, name: str, tensor: Tensor) -> Tensor:
        master = self.masters[name]
        if not isinstance(master, DTensor):
            return tensor
        return as_shard(local_slice_of(tensor, master).to(master.device, copy=True), master)


def _set_prefetch(units: Sequence[PlannedUnit], heads: Sequence[FSDPModule | None]) -> None:
    """Gather ahead as the plan says; in backward the other way round, nearest first."""
    before: dict[int, list[FSDPModule]] = {}
    for index, unit in enumerate(units):
        head = heads[index]
        ahead = [each for each in unit.prefetch if units[each].gather and heads[each] is not None]
        if head is None or not ahead:
            continue
        head.set_modules_to_forward_prefetch([_unit(cast(nn.Module, heads[e])) for e in ahead])
        for each in ahead:
            before.setdefault(each, []).append(head)
    for index, earlier in before.items():
        later = heads[index]
        if later is not None:
            later.set_modules_to_backward_prefetch(list(reversed(earlier)))


def _keep_class_name(kind: type[nn.Module]) -> None:
    """Name the class that ``fully_shard`` has made after the one that was given.

    Programs show it, choose by it and write it into the files of a model.
    """
    given = kind.__mro__[2]  # behind the class itself and FSDPModule
    kind.__name__, kind.__qualname__ = given.__name__, given.__qualname__
    kind.__module__ = given.__module__


def _unit(module: nn.Module) -> FSDPModule:
    if not isinstance(module, FSDPModule):
        raise TypeError(f"{type(module).__name__} is not under fully_shard")
    return module
