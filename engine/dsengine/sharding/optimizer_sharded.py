"""Stages 1 and 2: sharded optimizer states, unsharded parameters."""

import torch
from torch import nn

from dsconfig import Plan
from dsengine.optimizers.precision import Policy
from dsengine.sharding.fully_sharded import FullySharded
from dsengine.topology import Topology
from dsengine.torch_private.removal import generate_alone


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
            self._unsharded_units.use_full_state_dicts(self.root)
        if topology.mesh.expert == 1:
            generate_alone(module)
