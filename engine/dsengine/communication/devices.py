"""The device on which this rank computes, and the device whose tensors a group communicates."""

import torch
import torch.distributed as dist

from dsengine.communication.environment import discover
from dsengine.torch_private import supports_device


def select_device() -> None:
    """Make this rank's GPU the current one, unless the script has chosen one.

    As with DeepSpeed, a script that initializes the process group itself may rely on
    ``initialize`` for this; otherwise all ranks of a node would share its first GPU.
    """
    if not torch.cuda.is_available():
        return
    bound = getattr(dist.group.WORLD, "bound_device_id", None)
    if bound is not None:
        torch.cuda.set_device(bound)
    elif torch.cuda.current_device() == 0:
        placement = discover(rank=dist.get_rank(), world_size=dist.get_world_size())
        torch.cuda.set_device(placement.local_rank % torch.cuda.device_count())


def device_of_rank() -> torch.device:
    """Return the current GPU of this process, or the CPU if there is none."""
    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def device_for(group: dist.ProcessGroup) -> torch.device:
    """Return the device whose tensors ``group`` uses: the GPU if it can.

    A group initialized with ``nccl`` cannot communicate host tensors.
    """
    own = device_of_rank()
    return own if supports_device(group, own.type) else torch.device("cpu")
