"""Process groups of a run: which ranks share one copy of the states, which hold copies."""

import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from dsconfig import Plan

REPLICATE, SHARD = "replicate", "shard"


def device_mesh(plan: Plan, device: torch.device) -> DeviceMesh:
    """One axis when all ranks share the states, (replicate, shard) when there are copies."""
    world, shard = plan.mesh.data_parallel, plan.mesh.shard
    if shard == world:
        return init_device_mesh(device.type, (world,), mesh_dim_names=(SHARD,))
    shape = (world // shard, shard)
    return init_device_mesh(device.type, shape, mesh_dim_names=(REPLICATE, SHARD))
