"""The device mesh: ranks that share one copy of the states, and their replicas."""

import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from dsconfig import Plan

REPLICATE, SHARD = "replicate", "shard"


def device_mesh(plan: Plan, device: torch.device) -> DeviceMesh:
    """Return a mesh with axes (shard,), or (replicate, shard) if there are replicas."""
    shard = plan.mesh.shard
    replicas = plan.mesh.data_parallel // shard
    if replicas == 1:
        return init_device_mesh(device.type, (shard,), mesh_dim_names=(SHARD,))
    return init_device_mesh(device.type, (replicas, shard), mesh_dim_names=(REPLICATE, SHARD))
