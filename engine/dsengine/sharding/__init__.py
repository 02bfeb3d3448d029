"""How a model lies on the ranks: one mechanism per file, chosen by stage and precision."""

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule

from dsconfig import Plan
from dsengine.optimizers.precision import Policy
from dsengine.sharding.base import Sharding
from dsengine.sharding.fully_sharded import FullySharded
from dsengine.sharding.mesh import device_mesh
from dsengine.sharding.optimizer_sharded import OptimizerSharded
from dsengine.sharding.replicated import Replicated
from dsengine.sharding.restoration import record_distribution, restore_model, snapshot
from dsengine.sharding.to_device import broadcast_from_rank_0, move_and_broadcast, move_buffers
from dsengine.sharding.zero.adoption import is_partitioned, restore_whole
from dsengine.sharding.zero.rounded import restore_exact

__all__ = ["FullySharded", "OptimizerSharded", "Replicated", "Sharding", "distribute"]


def distribute(module: nn.Module, plan: Plan, policy: Policy, device: torch.device) -> Sharding:
    """Put ``module`` on ``device`` and distribute it as the plan says.

    Every rank ends up with the weights of rank 0, or with those zero.Init has divided.
    A model that an engine has had is taken over, with the values of training. Raises ValueError
    for one that something else has divided.
    """
    known = restore_model(module)
    if any(isinstance(each, FSDPModule) for each in module.modules()):
        raise ValueError(
            "this model is under fully_shard, or part of one that is under an engine: build it "
            "anew for another initialize()"
        )
    before = snapshot(module)
    sharding = _distributed(module, plan, policy, device)
    record_distribution(sharding, before)
    sharding.originals |= {old: sharding.originals[new] for old, new in known.items()}
    return sharding


def _distributed(module: nn.Module, plan: Plan, policy: Policy, device: torch.device) -> Sharding:
    stage = plan.effective.zero.stage
    for parameter in module.parameters():
        restore_exact(parameter)
    if is_partitioned(module) and stage < 3:
        restore_whole(module)
    if stage == 0:
        move_and_broadcast(module, device, policy.before_masters)
    else:  # parameters follow unit by unit
        move_buffers(module, device)
        broadcast_from_rank_0(module.buffers())
    if policy.buffers is not None:
        for buffer in module.buffers():
            if buffer.is_floating_point():
                buffer.data = buffer.data.to(policy.buffers)
    if stage == 0:
        return Replicated(module, plan, policy)
    mechanism = FullySharded if stage == 3 else OptimizerSharded
    return mechanism(module, plan, policy, device_mesh(plan, device), device)
