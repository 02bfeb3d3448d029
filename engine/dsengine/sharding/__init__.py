"""How a model lies on the ranks: one mechanism per file, chosen by stage and precision."""

import torch
from torch import nn

from dsconfig import Plan
from dsengine.precision import Policy
from dsengine.sharding.base import Sharding, local_part
from dsengine.sharding.fully_sharded import FullySharded
from dsengine.sharding.mesh import broadcast_from_first_rank, device_mesh
from dsengine.sharding.replicated import Replicated
from dsengine.sharding.whole import WholeAtRest
from dsengine.zero.handover import is_partitioned, move_whole, restore_whole

__all__ = ["FullySharded", "Replicated", "Sharding", "WholeAtRest", "distribute", "local_part"]


def distribute(module: nn.Module, plan: Plan, policy: Policy, device: torch.device) -> Sharding:
    """Put ``module`` on ``device`` and distribute it as the plan says."""
    stage = plan.effective.zero.stage
    if is_partitioned(module) and stage < 3:
        restore_whole(module)
    if is_partitioned(module):
        move_whole(module, device)  # pieces move when they have found their shards
    else:
        module.to(device)
    broadcast_from_first_rank(module)
    if stage == 0:
        return Replicated(module, plan, policy)
    mechanism = FullySharded if stage == 3 else WholeAtRest
    return mechanism(module, plan, policy, device_mesh(plan, device))
