"""The units of a model under ``fully_shard``."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)

from dsconfig import PlannedUnit
from dsengine.optimizers.precision import Policy
from dsengine.parameters.names import own_parameters
from dsengine.parameters.shards import is_of_experts
from dsengine.sharding.to_device import on_device, split_parts
from dsengine.sharding.zero.external import uses_external
from dsengine.tiers.masters import HostMasters
from dsengine.tiers.memory import can_pin
from dsengine.torch_private.hook_costs import reduce_hook_costs
from dsengine.torch_private.units import reshard_within

CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)
"""Modules that are never called, so their hooks would gather nothing."""


@dataclass(eq=False)
class UnitSharder:
    """Shards the modules of ``root`` over ``mesh``.

    ``group``: the ranks with the same parameters. ``expert_mesh``: those with the same experts, if
    these are divided. ``offload``: where parameters are stored between uses. ``masters`` get fp32
    copies of the parameters. ``ignored``: parameters to leave as they are.
    """

    root: nn.Module
    mesh: DeviceMesh
    group: dist.ProcessGroup
    expert_mesh: DeviceMesh | None
    device: torch.device
    policy: Policy
    cast_inputs: bool
    reduce_dtype: torch.dtype
    offload: Any
    masters: HostMasters | None
    ignored: Iterable[nn.Parameter]
    unsharded: list[FSDPModule] = field(init=False, default_factory=list[FSDPModule])
    """Heads of units that the plan does not gather around their use."""
    _reshard_meshes: dict[int, Any] = field(init=False, default_factory=dict[int, Any])
    """Meshes for resharding to fewer ranks, by number of ranks."""
    _in_leaves: set[nn.Module] = field(init=False, default_factory=set[nn.Module])

    def __post_init__(self) -> None:
        reduce_hook_costs()

    def shard_leaf(self, leaf: nn.Module, *, gather: bool) -> None:
        """Make one unit of a leaf and its submodules; ``gather`` it around its use."""
        self._in_leaves.update(leaf.modules())
        is_root = leaf is self.root
        self.shard(
            [leaf],
            reshard_after_forward=gather and not is_root,
            cast_inputs=self.cast_inputs and not is_root,
            gather=gather,
        )

    def shard_unit(self, unit: PlannedUnit) -> FSDPModule | None:
        """Shard one unit; return its head module, or None if it has no modules.

        A layer with several names belongs to the unit of its first name.
        """
        submodules = dict.fromkeys(self.root.get_submodule(name) for name in unit.modules)
        modules = [
            submodule
            for submodule in submodules
            if submodule not in self._in_leaves
            and not isinstance(submodule, (*CONTAINERS, FSDPModule))
        ]
        if not modules:
            return None
        is_root = self.root in modules
        gather = unit.gather and (is_root or not uses_external(*modules))
        self.shard(
            modules,
            reshard_after_forward=unit.reshard_after_forward if gather else False,
            cast_inputs=self.cast_inputs and not is_root,
            gather=gather,
        )
        return as_unit(modules[0])

    def shard(
        self,
        modules: list[nn.Module],
        *,
        reshard_after_forward: bool | int,
        cast_inputs: bool,
        gather: bool = True,
    ) -> None:
        """Make one unit of ``modules``, and one of each module with divided experts below them.

        ``gather``: whether they are gathered around their use.
        """
        divided = self._divided_experts(modules)
        for experts in divided:
            reshard = bool(reshard_after_forward)
            self._shard(self.expert_mesh, [experts], reshard, cast_inputs=False)
            if not gather:
                self.unsharded.append(as_unit(experts))
        others = [module for module in modules if module not in divided]
        if not others:
            return
        self._shard(self.mesh, others, reshard_after_forward, cast_inputs=cast_inputs)
        if not gather:
            self.unsharded.append(as_unit(others[0]))

    def _divided_experts(self, modules: Sequence[nn.Module]) -> list[nn.Module]:
        below = dict.fromkeys(each for module in modules for each in module.modules())
        return [
            module
            for module in below
            if not isinstance(module, FSDPModule)
            and any(is_of_experts(parameter) for _, parameter in own_parameters(module))
        ]

    def _shard(
        self,
        over: DeviceMesh | None,
        modules: list[nn.Module],
        reshard_after_forward: bool | int,
        *,
        cast_inputs: bool,
    ) -> None:
        to_fewer = not isinstance(reshard_after_forward, bool)
        mesh = self._reshard_meshes.get(reshard_after_forward) if to_fewer else None
        with on_device(modules, self.device, self.policy.storage_dtype, self.group) as full:
            if self.masters is not None:
                self.masters.extract([*full, *split_parts(modules)])
            fully_shard(
                modules if len(modules) > 1 else modules[0],  # type: ignore[arg-type]
                mesh=over,
                reshard_after_forward=True if mesh else reshard_after_forward,
                mp_policy=self._mixed_precision(cast_inputs),
                offload_policy=offload_policy(self.offload),
                ignored_params=set(self.ignored),
            )
        for submodule in modules:
            _keep_class_name(type(submodule))
        if to_fewer:
            self._reshard_meshes[reshard_after_forward] = reshard_within(as_unit(modules[0]), mesh)

    def _mixed_precision(self, cast_inputs: bool) -> MixedPrecisionPolicy:
        compute, reduce = self.policy.compute, self.reduce_dtype
        # If omitted, it is the compute dtype, and since torch 2.15 the dtype of the shards.
        explicit = self.policy.is_mixed or reduce is not compute
        return MixedPrecisionPolicy(
            param_dtype=compute if self.policy.is_mixed else None,
            reduce_dtype=reduce if explicit else None,
            cast_forward_inputs=cast_inputs,
        )


def offload_policy(offload: Any) -> OffloadPolicy:
    """Return ``fully_shard``'s policy for parameters stored on the host or NVMe."""
    if offload is None:
        return OffloadPolicy()
    pin = offload.pin_memory and can_pin()
    return CPUOffloadPolicy(pin_memory=pin and offload.tier != "nvme")


def set_prefetch(units: Sequence[PlannedUnit], heads: Sequence[FSDPModule | None]) -> None:
    """Set the planned forward prefetch; backward prefetch is its reverse, nearest unit first.

    A unit prefetches only what those before it have not: torch calls each target again otherwise.
    """
    head_of = {index: head for index, head in enumerate(heads) if head is not None}
    ahead = {
        index: [i for i in units[index].prefetch if units[i].gather and i in head_of]
        for index in head_of
    }
    before: dict[int, list[int]] = {index: [] for index in head_of}
    for index in reversed(head_of):
        for i in ahead[index] if units[index].gather else ():
            before[i].append(index)
    for index, targets in _new_targets(ahead, head_of):
        head_of[index].set_modules_to_forward_prefetch([head_of[i] for i in targets])
    for index, targets in _new_targets(before, reversed(head_of)):
        head_of[index].set_modules_to_backward_prefetch([head_of[i] for i in targets])


def _new_targets(
    targets: Mapping[int, Sequence[int]], order: Iterable[int]
) -> Iterator[tuple[int, list[int]]]:
    """Yield the units that prefetch, with those of their targets that none before them has."""
    started: set[int] = set()
    for index in order:
        new = [i for i in targets[index] if i not in started]
        started.update(new)
        if new:
            yield index, new


def _keep_class_name(kind: type[nn.Module]) -> None:
    """Give the class made by ``fully_shard`` the name of the original class.

    Programs display it, dispatch on it and write it into model files.
    """
    original = kind.__mro__[2]  # after the class itself and FSDPModule
    kind.__name__, kind.__qualname__ = original.__name__, original.__qualname__
    kind.__module__ = original.__module__


def as_unit(module: nn.Module) -> FSDPModule:
    """Return ``module``, which heads a unit."""
    if not isinstance(module, FSDPModule):
        raise TypeError(f"{type(module).__name__} is not under fully_shard")
    return module
