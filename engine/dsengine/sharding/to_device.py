"""Moving a model from host to device, unit by unit, so that it need not fit unsharded."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from dsconfig import tiles
from dsengine.parameters.shards import is_indivisible, is_shard
from dsengine.sharding.zero.partitioned import is_partitioned_parameter
from dsengine.torch_private.groups import broadcast_coalesced
from dsengine.torch_private.modules import buffer_table


def move_and_broadcast(
    module: nn.Module,
    device: torch.device,
    dtype_of: Callable[[nn.Parameter], torch.dtype],
    group: dist.ProcessGroup,
) -> None:
    """Move a full model to the device and broadcast the weights of the group's first rank."""
    move_parameters(unsharded_parameters([module]), device, dtype_of, group)
    move_buffers(module, device)
    broadcast_from_first(module.buffers(), group)


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
    group: dist.ProcessGroup,
) -> None:
    """Move full parameters to the device and broadcast the values of the group's first rank.

    ``dtype_of``: returns a parameter's new dtype.
    """
    moved = list(parameters)
    for parameter in moved:
        parameter.data = parameter.data.to(device, dtype_of(parameter))
    broadcast_from_first(moved, group)


@contextmanager
def on_device(
    modules: Iterable[nn.Module],
    device: torch.device,
    dtype_of: Callable[[nn.Parameter], torch.dtype],
    group: dist.ProcessGroup,
) -> Iterator[list[nn.Parameter]]:
    """Move the unsharded parameters of ``modules`` to the device, alike in ``group``, for sharding.

    Each gets the dtype that ``dtype_of`` returns; parameters that cannot be sharded are skipped. On
    exit the original parameters, which a script may still hold, get their host memory back, so that
    they do not keep the full model on the device.
    """
    full = [p for p in unsharded_parameters(modules) if not is_indivisible(p)]
    on_host = [parameter.data for parameter in full]
    move_parameters(full, device, dtype_of, group)
    yield full
    for parameter, data in zip(full, on_host, strict=True):
        parameter.data = data


def broadcast_from_first(tensors: Iterable[Tensor], group: dist.ProcessGroup) -> None:
    """Broadcast the values of the group's first rank."""
    real = [t.detach() for t in tensors if not (t.is_meta or is_partitioned_parameter(t))]
    if group.size() > 1 and real:
        broadcast_coalesced(real, tiles.BROADCAST_BYTES, group)


def unsharded_parameters(modules: Iterable[nn.Module]) -> list[nn.Parameter]:
    """Return the parameters that are neither sharded nor meta, each once."""
    parameters = {
        id(parameter): parameter
        for module in modules
        for parameter in module.parameters()
        if not (
            isinstance(parameter, DTensor)
            or parameter.is_meta
            or is_partitioned_parameter(parameter)
        )
    }
    return list(parameters.values())


def split_parts(modules: Iterable[nn.Module]) -> list[nn.Parameter]:
    """Return this rank's parts of split layers that are not sharded, each once."""
    parameters = {
        id(parameter): parameter
        for module in modules
        for parameter in module.parameters()
        if isinstance(parameter, DTensor) and not is_shard(parameter)
    }
    return list(parameters.values())
