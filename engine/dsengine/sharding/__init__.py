"""Distribution of a model over ranks: one mechanism per file, chosen by stage and precision."""

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
from dsengine.sharding.zero.adoption import gather_all, is_partitioned
from dsengine.sharding.zero.rounded import restore_exact

__all__ = ["FullySharded", "OptimizerSharded", "Replicated", "Sharding", "distribute"]


def distribute(module: nn.Module, plan: Plan, policy: Policy, device: torch.device) -> Sharding:
    """Move ``module`` to ``device`` and distribute it as planned.

    Every rank gets rank 0's weights, or those partitioned by zero.Init. A model of an earlier
    engine is taken over with its trained weights. Raises ValueError for a model sharded by other
    code.
    """
    replaced = restore_model(module)
    if any(isinstance(submodule, FSDPModule) for submodule in module.modules()):
        raise ValueError(
            "this model is already under fully_shard, or is a submodule of an engine's model: "
            "build a new model for another initialize()"
        )
    before = snapshot(module)
    sharding = _distributed(module, plan, policy, device)
    record_distribution(sharding, before)
    sharding.originals |= {old: sharding.originals[new] for old, new in replaced.items()}
    return sharding


def _distributed(module: nn.Module, plan: Plan, policy: Policy, device: torch.device) -> Sharding:
    stage = plan.effective.zero.stage
    for parameter in module.parameters():
        restore_exact(parameter)
    if is_partitioned(module) and stage < 3:
        gather_all(module)
    if stage == 0:
        move_and_broadcast(module, device, policy.initial_dtype)
    else:  # parameters are moved unit by unit
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
