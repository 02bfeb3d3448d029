"""From zero.Init to the engine: the model is sharded without storage, then takes its pieces.

The engine calls, in this order: ``take_pieces`` before it shards a module, ``put_pieces`` right
after; below stage 3, ``restore_whole`` alone.
"""

from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from dsengine.parameters.names import own_parameters
from dsengine.parameters.shards import local_slice_of
from dsengine.sharding.zero.external import inherit
from dsengine.sharding.zero.partitioned import PartitionedParameter, gather, restore, retire
from dsengine.tiers.masters import HostMasters
from dsengine.torch_private import parameter_table, sharded_parameters_of, units_of


def is_partitioned(module: nn.Module) -> bool:
    """Whether ``module`` was built under zero.Init."""
    return any(isinstance(p, PartitionedParameter) for p in _owned(module).values())


def restore_whole(module: nn.Module) -> None:
    """Make every parameter whole again, the same objects; collective."""
    for parameter in {id(p): p for p in _owned(module).values()}.values():
        if isinstance(parameter, PartitionedParameter):
            restore(parameter)


def take_pieces(module: nn.Module) -> dict[str, PartitionedParameter]:
    """Put meta parameters in the place of partitioned ones; return those by name.

    Tied weights stay tied, and come once.
    """
    replaced: dict[int, nn.Parameter] = {}
    taken = {n: p for n, p in module.named_parameters() if isinstance(p, PartitionedParameter)}
    for (owner, name), parameter in _owned(module).items():
        if not isinstance(parameter, PartitionedParameter):
            continue
        if id(parameter) not in replaced:
            like = torch.empty_like(parameter._like, dtype=parameter._piece.dtype)
            meta = nn.Parameter(like, parameter.requires_grad)
            inherit(meta, parameter)
            replaced[id(parameter)] = meta
        parameter_table(owner)[name] = replaced[id(parameter)]
    return taken


def put_pieces(
    module: nn.Module,
    names: dict[str, PartitionedParameter],
    device: torch.device,
    masters: HostMasters | None = None,
) -> None:
    """Give each sharded parameter, still without storage, its piece; free the piece's origin.

    ``names``: the partitioned parameters by the names of the module's parameters. ``masters``
    keep theirs where there are such. Collective where the module is divided otherwise than
    zero.Init did.
    """
    places = {id(each.shard): each for each in sharded_parameters_of(units_of(module))}
    for name, parameter in dict(module.named_parameters()).items():
        if name not in names:
            continue
        place = places[id(parameter)]
        home = torch.device("cpu") if place.is_on_host else device
        origin = names.pop(name)
        local = _local_piece(origin, cast(DTensor, place.shard))
        retire(origin)
        if masters is not None and masters.have(parameter):
            masters.keep(name, local)
        local = local.to(home, place.shard.dtype)
        place.replace(local, requires_grad=parameter.requires_grad)


def _local_piece(source: PartitionedParameter, target: DTensor) -> Tensor:
    if target.device_mesh.ndim > 1 or target.device_mesh.size() != dist.get_world_size():
        return local_slice_of(gather(source), target).clone().contiguous()
    return source._piece


def _owned(module: nn.Module) -> dict[tuple[nn.Module, str], nn.Parameter]:
    return {
        (owner, name): parameter
        for owner in module.modules()
        for name, parameter in own_parameters(owner)
    }
