"""Process groups of a run: which ranks share one copy of the states, which hold copies."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from dsconfig import Plan
from dsengine.zero.partitioned import is_piece

REPLICATE, SHARD = "replicate", "shard"
BROADCAST_BYTES = 256 * 1024**2


def device_of_rank() -> torch.device:
    """The accelerator of this process where there is one, else the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def device_mesh(plan: Plan, device: torch.device) -> DeviceMesh:
    """One axis when all ranks share the states, (replicate, shard) when there are copies."""
    world, shard = plan.mesh.data_parallel, plan.mesh.shard
    if shard == world:
        return init_device_mesh(device.type, (world,), mesh_dim_names=(SHARD,))
    shape = (world // shard, shard)
    return init_device_mesh(device.type, shape, mesh_dim_names=(REPLICATE, SHARD))


def broadcast_from_first_rank(module: nn.Module) -> None:
    """Give every rank the parameters and buffers of rank 0."""
    tensors = [*module.parameters(), *module.buffers()]
    real = [each.detach() for each in tensors if not (each.is_meta or is_piece(each))]
    if dist.get_world_size() > 1 and real:
        group = dist.distributed_c10d._get_default_group()
        dist._broadcast_coalesced(  # pyright: ignore[reportPrivateImportUsage]
            group, real, BROADCAST_BYTES, 0
        )
