"""On which device this rank computes, and on which one a group moves tensors."""

import torch
import torch.distributed as dist

from dsengine.comm.environment import discover


def settle_device() -> None:
    """Make this rank's GPU the current one, unless the script has chosen one.

    A script that starts the process group by itself may leave this to ``initialize``, as it may
    with DeepSpeed; all ranks of a node would share its first GPU otherwise.
    """
    if not torch.cuda.is_available():
        return
    bound = getattr(dist.group.WORLD, "bound_device_id", None)
    if bound is not None:
        torch.cuda.set_device(bound)
    elif torch.cuda.current_device() == 0:
        place = discover(rank=dist.get_rank(), world_size=dist.get_world_size())
        torch.cuda.set_device(place.local_rank % torch.cuda.device_count())


def device_for(group: dist.ProcessGroup | None) -> torch.device:
    """The device whose tensors ``group`` (None: all ranks) moves best: the GPU where it can.

    A group that a script has started with ``nccl`` moves no tensors of the host.
    """
    group = dist.distributed_c10d._get_default_group() if group is None else group
    if torch.cuda.is_available() and torch.device("cuda") in group._device_types:
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")
