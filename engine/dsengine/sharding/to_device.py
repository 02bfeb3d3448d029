"""How a model comes from the host to the device: unit by unit, so that it need not fit whole."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from dsconfig import tiles
from dsengine.parameters.shards import is_indivisible
from dsengine.sharding.zero.partitioned import is_partitioned_parameter
from dsengine.torch_private import broadcast_coalesced, buffer_table


def move_and_broadcast(
    module: nn.Module, device: torch.device, dtype_of: Callable[[nn.Parameter], torch.dtype]
) -> None:
    """Bring a whole model to the device, with the weights of rank 0 on every rank."""
    move_parameters(unsharded_parameters([module]), device, dtype_of)
    move_buffers(module, device)
    broadcast_from_rank_0(module.buffers())


def move_buffers(module: nn.Module, device: torch.device) -> None:
    for owner in module.modules():
        table = buffer_table(owner)
        for name, buffer in table.items():
            if buffer is not None:
                table[name] = buffer.to(device)


def move_parameters(
    parameters: Iterable[nn.Parameter],
    device: torch.device,
    dtype_of: Callable[[nn.Parameter], torch.dtype],
) -> None:
    """Bring whole parameters to the device, each in the dtype that ``dtype_of`` says."""
    moved = list(parameters)
    for parameter in moved:
        parameter.data = parameter.data.to(device, dtype_of(parameter))
    broadcast_from_rank_0(moved)


@contextmanager
def on_device(
    modules: Iterable[nn.Module],
    device: torch.device,
    dtype_of: Callable[[nn.Parameter], torch.dtype],
) -> Iterator[list[nn.Parameter]]:
    """Have the unsharded_parameters parameters of ``modules`` on the device, alike on all ranks.

    Each is of the dtype that ``dtype_of`` says; what nothing divides stays away. Inside, they are
    sharded.
    Afterwards the parameters from before, which a script may still hold, have the memory that
    they came in: on the device they would keep the whole model beside its shards.
    """
    whole = [
        parameter for parameter in unsharded_parameters(modules) if not is_indivisible(parameter)
    ]
    before = [parameter.data for parameter in whole]
    move_parameters(whole, device, dtype_of)
    yield whole
    for parameter, data in zip(whole, before, strict=True):
        parameter.data = data


def broadcast_from_rank_0(tensors: Iterable[Tensor]) -> None:
    """Give every rank the values that rank 0 has."""
    real = [
        each.detach() for each in tensors if not (each.is_meta or is_partitioned_parameter(each))
    ]
    if dist.get_world_size() > 1 and real:
        broadcast_coalesced(real, tiles.BROADCAST_BYTES)


def unsharded_parameters(modules: Iterable[nn.Module]) -> list[nn.Parameter]:
    """The parameters that are still whole and real, each once."""
    found = {
        id(parameter): parameter
        for module in modules
        for parameter in module.parameters()
        if not (
            isinstance(parameter, DTensor)
            or parameter.is_meta
            or is_partitioned_parameter(parameter)
        )
    }
    return list(found.values())
