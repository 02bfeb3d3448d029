"""fp32 masters on the host, 16-bit shards on the device."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._dtensor_spec import DTensorSpec

from dsengine.checkpoint.names import parameter_groups


@torch.no_grad()
def move_masters_to_host(
    module: nn.Module, units: Iterable[FSDPModule], dtype: torch.dtype, *, pin: bool
) -> dict[str, Tensor]:
    """Copy the trainable fp32 shards to the host; leave shards of ``dtype`` in their place.

    Returns this rank's fp32 parts by parameter name. Call it before the units are first
    gathered: that is when ``fully_shard`` settles on the dtypes it moves.
    """
    entries = {
        id(entry.sharded_param): entry
        for unit in units
        for group in parameter_groups(unit)
        for entry in group.fsdp_params
    }
    masters: dict[str, Tensor] = {}
    for name, parameter in dict(module.named_parameters()).items():
        entry = entries.get(id(parameter))
        if entry is None or not parameter.requires_grad or parameter.dtype is not torch.float32:
            continue
        piece = entry.sharded_param._local_tensor
        master = torch.empty(piece.shape, dtype=torch.float32, device="cpu", pin_memory=pin)
        masters[name] = master.copy_(piece)
        spec = entry.sharded_param._spec
        meta = spec.tensor_meta._replace(dtype=dtype)
        small = DTensor(
            piece.to(dtype),
            DTensorSpec(spec.mesh, spec.placements, tensor_meta=meta),
            requires_grad=False,
        )
        entry._setattr_on_modules(nn.Parameter(small))
        entry.reset_sharded_param()
    return masters
