"""Stages 1 and 2: sharded optimizer states, unsharded parameters."""

import torch
from torch import nn

from dsconfig import Plan
from dsengine.optimizers.precision import Policy
from dsengine.parameters.chunks import chunk_of
from dsengine.sharding.fully_sharded import FullySharded
from dsengine.topology import Topology
from dsengine.torch_private.removal import make_copyable
from dsengine.torch_private.tensors import local_part
from dsengine.torch_private.units import (
    ShardedParameter,
    remove_state_dict_hooks,
    sharded_parameters,
)


class OptimizerSharded(FullySharded):
    """Every unit stays unsharded between steps, with the module's own parameters.

    The module has plain parameters of the compute dtype: submodules can be called, weights read and
    written with ``load_state_dict``, and a state dict taken on any single rank, without
    collectives.
    """

    cast_inputs = False

    def __init__(
        self,
        module: nn.Module,
        plan: Plan,
        policy: Policy,
        topology: Topology,
        device: torch.device,
    ) -> None:
        super().__init__(module, plan, policy, topology, device)
        if self.root not in self.unsharded:
            self._keep_unsharded(self.root)
            self._ensure_gathered()
        for unit in self.unsharded:
            remove_state_dict_hooks(unit)
            for parameter in sharded_parameters(unit):
                _write_through(parameter)
        make_copyable(module)


def _write_through(parameter: ShardedParameter) -> None:
    """Copy what ``load_state_dict`` loads into a full parameter to its trained shard."""

    @torch.no_grad()
    def refresh(*_: object) -> None:
        own = chunk_of(parameter.unsharded, parameter.rank, parameter.ranks)
        local_part(parameter.shard).copy_(own)

    parameter.owner.register_load_state_dict_post_hook(refresh)
