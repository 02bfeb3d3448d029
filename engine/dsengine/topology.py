"""Ranks along the axes of a plan, and the process groups they form.

Mechanisms take their group from here; besides this file only ``communication`` and ``observation``
know all ranks.

[Note: order of creation]
Creating a process group is collective over all ranks. ``Topology`` therefore creates every group
that covers neither one rank nor all of them in its constructor; those of all ranks exist, and a
rank creates a group of itself without the others.
"""

from collections.abc import Callable, Mapping
from functools import cached_property
from math import prod
from typing import Literal
from weakref import ref

import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from dsconfig import Mesh
from dsengine.torch_private.groups import (
    concatenated,
    correct_all_gather_gradient,
    flattened,
    supports_device,
    unflattened,
)

EXPERT_AXES = ("expert_data", "expert")
GroupName = Literal[
    "all",
    "samples",
    "gradients",
    "states",
    "copy",
    "replicate",
    "sequence",
    "tensor",
    "pipeline",
    "stage",
    "expert_data",
    "expert",
]
AXES: Mapping[GroupName, tuple[str, ...]] = {
    "all": ("pipeline", "replicate", "shard", "sequence", "tensor"),
    "samples": ("replicate", "shard"),
    "gradients": ("replicate", "shard", "sequence"),
    "states": ("shard", "sequence"),
    "copy": ("shard", "sequence", "tensor"),
    "replicate": ("replicate",),
    "sequence": ("sequence",),
    "tensor": ("tensor",),
    "pipeline": ("pipeline",),
    "stage": ("replicate", "shard", "sequence", "tensor"),
    "expert_data": ("expert_data",),
    "expert": ("expert",),
}
"""Axes along which the ranks of a group differ; those of experts divide the ``samples``.

``samples``: ranks with different samples. ``gradients``: all with the same part of the model, whose
gradients are averaged. ``states``: those that share one copy of its states. ``copy``: those that
share one copy of the states of all parts of a stage. ``replicate``: those with the same shard.
``stage``: those with the same pipeline stage. ``expert``: those that share one copy of the experts.
``expert_data``: those with the same experts.
"""


class Topology:
    """The ranks of ``mesh`` as a DeviceMesh and named process groups. Construction is collective.

    ``device``: the type of the device whose tensors are sharded.
    """

    def __init__(self, mesh: Mesh, device: str) -> None:
        self.mesh = mesh
        self.all_ranks = all_ranks()
        self._device = device
        self._host_groups: dict[GroupName, dist.ProcessGroup] = {}
        self._groups_of_stages: dict[tuple[int, ...], dist.ProcessGroup | None] = {}
        self._sizes = mesh.axes | mesh.expert_axes
        for name in AXES:
            if 1 < self.size(name) < mesh.world_size:
                self.group(name)
        if mesh.sequence > 1:
            correct_all_gather_gradient()

    @cached_property
    def devices(self) -> DeviceMesh:
        """The DeviceMesh over all axes with several ranks, and over ``shard``."""
        axes = {n: size for n, size in self.mesh.axes.items() if size > 1 or n == "shard"}
        return init_device_mesh(self._device, tuple(axes.values()), mesh_dim_names=tuple(axes))

    @cached_property
    def state_mesh(self) -> DeviceMesh:
        """The mesh for ``fully_shard``: (states,), or (replicate, states) if there are replicas."""
        replicate = ("replicate",) if self.mesh.replicate > 1 else ()
        if self.mesh.sequence == 1:
            return self.devices[(*replicate, "shard")]
        states = flattened(self.devices["shard", "sequence"], "states")
        return concatenated([*map(self.devices.__getitem__, replicate), states])

    @property
    def expert_mesh(self) -> DeviceMesh:
        """The mesh over which experts are divided."""
        return self._experts["expert"]

    @cached_property
    def expert_state_mesh(self) -> DeviceMesh:
        """The mesh for ``fully_shard`` of experts: (states,), or (copies, states)."""
        data, states = self._experts["expert_data"], self.mesh.expert_state_ranks
        if states == data.size():
            return data
        axes = {"expert_copies": data.size() // states, "expert_states": states}
        return unflattened(data, axes)

    def size(self, name: GroupName) -> int:
        """Return the number of ranks in each group."""
        return prod(self._sizes[axis] for axis in AXES[name])

    def rank(self, name: GroupName) -> int:
        """Return this rank's number in its group."""
        return self.group(name).rank() if self.size(name) > 1 else 0

    def group(self, name: GroupName) -> dist.ProcessGroup:
        """Return this rank's group."""
        axes, size = [axis for axis in AXES[name] if self._sizes[axis] > 1], self.size(name)
        if size == self.mesh.world_size:
            return self.all_ranks
        if not axes:
            return self._alone
        if axes[0] in EXPERT_AXES:
            is_divided = size < self.size("samples")
            return self._experts.get_group(axes[0]) if is_divided else self.group("samples")
        if len(axes) > 1:
            return flattened(self.devices[tuple(axes)], name).get_group()
        return self.devices.get_group(axes[0])

    @cached_property
    def _experts(self) -> DeviceMesh:
        """The ranks with different samples, along the axes of experts."""
        samples = self.devices["shard"]
        if self.mesh.replicate > 1:
            samples = flattened(self.devices["replicate", "shard"], "samples")
        return unflattened(samples, {axis: self._sizes[axis] for axis in EXPERT_AXES})

    @cached_property
    def _alone(self) -> dist.ProcessGroup:
        """The group of this rank."""
        return _member(dist.new_group([rank()], use_local_synchronization=True))

    def group_for(self, tensor: Tensor, name: GroupName) -> dist.ProcessGroup:
        """Return a group of these ranks that supports ``tensor``'s device: gloo if necessary."""
        group = self.group(name)
        if supports_device(group, tensor.device.type):
            return group
        if name not in self._host_groups:
            self._host_groups[name] = self.new_host_group(name)
        return self._host_groups[name]

    def group_of_stages(self, stages: tuple[int, ...]) -> dist.ProcessGroup | None:
        """Return the ranks on these pipeline stages that differ in nothing else; None if this
        rank's stage is another. Collective over all ranks at the first call."""
        if stages not in self._groups_of_stages:
            pipelines = self.mesh.groups("pipeline")
            groups = [[ranks[stage] for stage in stages] for ranks in pipelines]
            is_member = self.rank("pipeline") in stages
            found = dist.new_subgroups_by_enumeration(groups)[0]
            self._groups_of_stages[stages] = _member(found) if is_member else None
        return self._groups_of_stages[stages]

    def new_host_group(self, name: GroupName) -> dist.ProcessGroup:
        """Return a new gloo group of the same ranks. Collective over all ranks."""
        if self.size(name) == self.mesh.world_size:
            return new_host_group()
        groups = [list(ranks) for ranks in self.mesh.groups(*AXES[name])]
        return _member(dist.new_subgroups_by_enumeration(groups, backend="gloo")[0])


def rank() -> int:
    """Return this process's number among all ranks; 0 without a process group."""
    return dist.get_rank() if dist.is_initialized() else 0


def world_size() -> int:
    """Return the number of ranks; 1 without a process group."""
    return dist.get_world_size() if dist.is_initialized() else 1


def all_ranks() -> dist.ProcessGroup:
    """Return the group of all ranks. Raises RuntimeError without a process group."""
    if dist.group.WORLD is None:
        raise RuntimeError("no process group: call dsengine.init_distributed() first")
    return dist.group.WORLD


def new_host_group() -> dist.ProcessGroup:
    """Return a new gloo group of all ranks. Collective."""
    return _member(dist.new_group(backend="gloo"))


def new_group_of(lists: list[list[int]]) -> dist.ProcessGroup:
    """Return this rank's group of ``lists``, one of which has it. Collective over all ranks."""
    return _member(dist.new_subgroups_by_enumeration(lists)[0])


def _member(group: dist.ProcessGroup | int | None) -> dist.ProcessGroup:
    """Narrow torch's type, which allows an int for ranks outside of the group."""
    if not isinstance(group, dist.ProcessGroup):
        raise RuntimeError("this rank is not part of the process group")
    return group


_topologies: list[Callable[[], Topology | None]] = []
"""The default, then those of the script and, as weak references, of engines; the last is current.
"""


def current() -> Topology:
    """Return the topology of the engine built last; without one, every rank is a replica.

    For functions that scripts call without an engine.
    """
    ranks = all_ranks()
    alive = [(each, topology) for each in _topologies if (topology := each()) is not None]
    _topologies[:] = [each for each, topology in alive if topology.all_ranks is ranks]
    if not _topologies:
        make_current(Topology(Mesh(replicate=world_size()), "cpu"))
    topology = _topologies[-1]()
    assert topology is not None
    return topology


def make_current(topology: Topology, *, of_engine: bool = False) -> None:
    """Let ``current`` return ``topology`` until another one is made current; that of an engine
    until it is released or the engine is gone."""
    _topologies.append(ref(topology) if of_engine else lambda: topology)


def release_topology(topology: Topology) -> None:
    """Let ``current`` return the topology before that of an engine, if it is the current one."""
    _topologies[:] = [
        each for each in _topologies if not (isinstance(each, ref) and each() is topology)
    ]
