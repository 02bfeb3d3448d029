"""fp32 masters on the host, 16-bit shards on the device."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from dsengine.torch_private import collect, local_part


@torch.no_grad()
def move_masters_to_host(
    module: nn.Module, units: Iterable[FSDPModule], dtype: torch.dtype, *, pin: bool
) -> dict[str, Tensor]:
    """Copy the trainable fp32 shards to the host; leave shards of ``dtype`` in their place.

    Returns this rank's fp32 parts by parameter name. Call it before the units are first
    gathered: that is when ``fully_shard`` settles on the dtypes it moves.
    """
    places = {id(each.shard): each for each in collect(units)}
    masters: dict[str, Tensor] = {}
    for name, parameter in dict(module.named_parameters()).items():
        place = places.get(id(parameter))
        if place is None or not parameter.requires_grad or parameter.dtype is not torch.float32:
            continue
        part = local_part(parameter)
        master = torch.empty(part.shape, dtype=torch.float32, device="cpu", pin_memory=pin)
        masters[name] = master.copy_(part)
        place.replace(part.to(dtype))
    return masters
