"""Stages 1 and 2: parameters whole at rest."""

from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from dsconfig import Plan
from dsengine.precision import Policy
from dsengine.sharding.copying import make_copyable
from dsengine.sharding.fully_sharded import FullySharded
from dsengine.sharding.internals import release_state_dict_hooks, sharded_entries


class WholeAtRest(FullySharded):
    """Every unit is whole between steps, and stays what the script knew.

    The module holds plain parameters of the compute dtype: submodules can be called, weights
    read and written by ``load_state_dict``, and a state dict taken on any one rank, without a
    collective.
    """

    cast_inputs = False

    def __init__(
        self,
        module: nn.Module,
        plan: Plan,
        policy: Policy,
        mesh: DeviceMesh,
        device: torch.device,
    ) -> None:
        super().__init__(module, plan, policy, mesh, device)
        if self.root not in self.whole:
            self._keep_whole(module)
            self._gather()
        for unit in self.whole:
            release_state_dict_hooks(unit)
            for entry in sharded_entries(unit):
                _write_through(entry)
        make_copyable(module)


def _write_through(entry: Any) -> None:
    """Let ``load_state_dict`` of a whole parameter reach the shard that is trained."""

    @torch.no_grad()
    def refresh(*_: object) -> None:
        shard = entry.sharded_param
        rank, ranks = entry.mesh_info.shard_mesh_rank, entry.mesh_info.shard_mesh_size
        pieces = entry.unsharded_param.chunk(ranks)
        if rank < len(pieces):
            shard.to_local().copy_(pieces[rank])

    entry._module_info.module.register_load_state_dict_post_hook(refresh)
