"""The device on which this rank computes, and the device whose tensors a group communicates."""

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import torch.distributed as dist

from dsconfig.features.table import FEATURES
from dsengine.communication.environment import discover
from dsengine.torch_private.groups import supports_device

ACCELERATOR = "DS_ACCELERATOR"
"""The variable that selects DeepSpeed's accelerator; ``cpu`` here accepts training on the host."""


def select_device() -> None:
    """Make this rank's GPU the current one, unless the script has chosen one.

    As with DeepSpeed, a script that initializes the process group itself may rely on
    ``initialize`` for this; otherwise all ranks of a node would share its first GPU.

    Raises ValueError on a machine whose accelerator the engine cannot use, unless DS_ACCELERATOR
    is ``cpu``.
    """
    if not torch.cuda.is_available():
        _refuse_other_accelerators()
        return
    bound = getattr(dist.group.WORLD, "bound_device_id", None)
    if bound is not None:
        torch.cuda.set_device(bound)
    elif torch.cuda.current_device() == 0:
        placement = discover(rank=dist.get_rank(), world_size=dist.get_world_size())
        torch.cuda.set_device(placement.local_rank % torch.cuda.device_count())


def _refuse_other_accelerators() -> None:
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is not None and os.environ.get(ACCELERATOR, "").lower() != "cpu":
        raise ValueError(
            f"this machine has an accelerator of type {accelerator.type!r}: "
            f"{FEATURES['other_accelerators'].text} with {ACCELERATOR}=cpu"
        )


def threads_on_device(count: int, name: str) -> ThreadPoolExecutor:
    """Return threads on this rank's GPU; they would create a context on the first GPU otherwise."""
    if not torch.cuda.is_available():
        return ThreadPoolExecutor(count, name)
    device = torch.cuda.current_device()
    return ThreadPoolExecutor(count, name, initializer=torch.cuda.set_device, initargs=(device,))


def recorded_event(device: torch.device) -> Any:
    """Return an event recorded on the current stream of ``device``; None on the CPU."""
    if device.type != "cuda":
        return None
    event = torch.cuda.Event(blocking=True)  # its wait does not occupy a core
    event.record(torch.cuda.current_stream(device))
    return event


def wait_for_stream(device: torch.device) -> None:
    """Wait until ``device`` has done all work on the current stream, without occupying a core."""
    event = recorded_event(device)
    if event is not None:
        event.synchronize()


def wait_for_device(device: torch.device) -> None:
    """Wait until ``device`` has done all work on all streams."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def device_of_rank() -> torch.device:
    """Return the current GPU of this process, or the CPU if there is none."""
    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def get_backend(group: dist.ProcessGroup | None = None) -> str:
    """Return the backend with which a group (default: all ranks) communicates this rank's tensors.

    A group of several backends has the name ``cpu:gloo,cuda:nccl`` in torch; scripts expect
    ``nccl``, as from DeepSpeed.
    """
    name = str(dist.get_backend(group))
    by_device = dict(part.split(":") for part in name.split(",") if part.count(":") == 1)
    return by_device.get(device_of_rank().type, name)


def can_coalesce(group: dist.ProcessGroup) -> bool:
    """Whether ``group`` runs many collectives of this rank's tensors as one launch: NCCL only."""
    return get_backend(group) == "nccl"


def device_for(group: dist.ProcessGroup) -> torch.device:
    """Return the device whose tensors ``group`` uses: the GPU if it can.

    A group initialized with ``nccl`` cannot communicate host tensors.
    """
    own = device_of_rank()
    return own if supports_device(group, own.type) else torch.device("cpu")
