"""Full parameters for a phase of many forwards, such as generation.

[Note: generation]
A forward at stage 3 gathers every unit, and generation runs a forward per token. So the units are
gathered once before, if they fit into the free memory of every rank, and stay gathered; then ranks
do not depend on each other, and one may generate more tokens than another. Otherwise each forward
gathers block by block, and all ranks must run equally many.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule

from dsengine.tiers.memory import available_on_node
from dsengine.topology import world_size
from dsengine.torch_private.units import sharded_parameters_of

SHARE_OF_FREE_MEMORY = 0.75
"""The rest is for activations and the KV cache."""


def fit(
    units: Sequence[FSDPModule],
    dtype: torch.dtype,
    device: torch.device,
    group: dist.ProcessGroup,
) -> bool:
    """Whether the full parameters of ``units`` fit on every rank of ``group``. Collective.

    ``dtype``: of gathered floating-point parameters.
    """
    needed = 0
    for record in sharded_parameters_of(units):
        shard = record.flat_shard
        kept = dtype if shard.is_floating_point() else shard.dtype
        needed += shard.numel() * record.ranks * kept.itemsize
    fits = needed <= SHARE_OF_FREE_MEMORY * _free_memory(device)
    answers = [fits] * group.size()
    dist.all_gather_object(answers, fits, group=group)
    return all(answers)


def _free_memory(device: torch.device) -> float:
    """Return the bytes that this rank can still allocate on ``device``."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return free + cached
    available = available_on_node()
    return float("inf") if available is None else available / world_size()
