"""Handing partitioned parameters of zero.Init over to the engine.

The engine calls ``replace_partitioned`` before sharding a module and ``attach_shards`` right after,
so that the model is sharded without storage; below stage 3 it calls only ``gather_all``.
"""

from typing import cast

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from dsengine.parameters.names import own_parameters
from dsengine.parameters.shards import local_slice_of
from dsengine.sharding.zero.external import inherit
from dsengine.sharding.zero.partitioned import PartitionedParameter, gather, restore, retire
from dsengine.tiers.masters import HostMasters
from dsengine.topology import world_size
from dsengine.torch_private.modules import parameter_table
from dsengine.torch_private.units import sharded_parameters_of, units_of


def is_partitioned(module: nn.Module) -> bool:
    """Whether ``module`` was built under zero.Init."""
    return any(isinstance(p, PartitionedParameter) for p in _owned(module).values())


def gather_all(module: nn.Module) -> None:
    """Restore every parameter to a full one, the same object. Collective."""
    for parameter in {id(p): p for p in _owned(module).values()}.values():
        if isinstance(parameter, PartitionedParameter):
            restore(parameter)


def replace_partitioned(module: nn.Module) -> dict[str, PartitionedParameter]:
    """Replace partitioned parameters by meta parameters; return the former by name.

    Tied weights stay tied and are returned once.
    """
    metas: dict[int, nn.Parameter] = {}
    partitioned = {
        n: p for n, p in module.named_parameters() if isinstance(p, PartitionedParameter)
    }
    for (owner, name), parameter in _owned(module).items():
        if not isinstance(parameter, PartitionedParameter):
            continue
        if id(parameter) not in metas:
            like = torch.empty_like(parameter._meta, dtype=parameter._shard.dtype)
            meta = nn.Parameter(like, parameter.requires_grad)
            inherit(meta, parameter)
            metas[id(parameter)] = meta
        parameter_table(owner)[name] = metas[id(parameter)]
    return partitioned


def attach_shards(
    module: nn.Module,
    names: dict[str, PartitionedParameter],
    device: torch.device,
    masters: HostMasters | None = None,
) -> None:
    """Give each sharded meta parameter its shard and free the partitioned original.

    ``names``: partitioned parameters by parameter name; emptied. ``masters`` get fp32 copies.
    Collective if the module is sharded differently than by zero.Init.
    """
    records = {id(record.shard): record for record in sharded_parameters_of(units_of(module))}
    for name, parameter in dict(module.named_parameters()).items():
        if name not in names:
            continue
        record = records[id(parameter)]
        storage_device = torch.device("cpu") if record.is_on_host else device
        origin = names.pop(name)
        local = _local_shard(origin, cast(DTensor, record.shard))
        retire(origin)
        if masters is not None and masters.have(parameter):
            masters.store(name, local)
        local = local.to(storage_device, record.shard.dtype)
        record.replace(local, requires_grad=parameter.requires_grad)


def _local_shard(source: PartitionedParameter, target: DTensor) -> Tensor:
    if target.device_mesh.ndim > 1 or target.device_mesh.size() != world_size():
        return local_slice_of(gather(source), target).clone().contiguous()
    return source._shard


def _owned(module: nn.Module) -> dict[tuple[nn.Module, str], nn.Parameter]:
    return {
        (owner, name): parameter
        for owner in module.modules()
        for name, parameter in own_parameters(owner)
    }
