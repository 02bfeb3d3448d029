"""On which device this rank computes, and on which one a group moves tensors."""

import torch
import torch.distributed as dist

from dsengine.communication.environment import discover
from dsengine.torch_private import supports_device


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


def device_of_rank() -> torch.device:
    """The accelerator of this process where there is one, else the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def device_for(group: dist.ProcessGroup | None) -> torch.device:
    """The device whose tensors ``group`` (None: all ranks) handles: the GPU if it can.

    A group that a script has started with ``nccl`` moves no tensors of the host.
    """
    own = device_of_rank()
    return own if supports_device(group, own.type) else torch.device("cpu")
