"""init_distributed: initialize the process group under any launcher."""

import os
from datetime import timedelta
from logging import getLogger
from typing import Any

import torch
import torch.distributed as dist

from dsengine.communication.environment import DEFAULT_PORT, Placement, discover
from dsengine.communication.gloo_exit import wait_for_gloo_at_exit

logger = getLogger("dsengine.comm")


def default_timeout() -> timedelta:
    """Return DEEPSPEED_TIMEOUT minutes (default: 30)."""
    return timedelta(minutes=int(os.environ.get("DEEPSPEED_TIMEOUT", "30")))


def init_distributed(
    dist_backend: str | None = None,
    auto_mpi_discovery: bool = True,
    distributed_port: int = DEFAULT_PORT,
    verbose: bool = True,
    timeout: timedelta | None = None,
    init_method: str | None = None,
    dist_init_required: bool | None = None,
    config: Any = None,
    rank: int = -1,
    world_size: int = -1,
) -> None:
    """Initialize the process group under torchrun, mpirun, srun, ``mp.spawn``, or for one process.

    Does nothing if a group exists. Sets RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT,
    as training scripts expect, and the current CUDA device.

    Raises ValueError for an unknown or unusable backend, for incomplete launcher variables, and
    when ``dist_init_required`` is False but no group exists.
    """
    wait_for_gloo_at_exit()
    if dist.is_initialized():
        return
    if dist_init_required is False:
        raise ValueError(
            "dist_init_required=False, but no process group exists: call "
            "torch.distributed.init_process_group first, or leave the argument out"
        )
    if not auto_mpi_discovery and not {"RANK", "WORLD_SIZE"} <= set(os.environ) and rank < 0:
        raise ValueError("RANK and WORLD_SIZE are not set and auto_mpi_discovery is False")
    placement = discover(rank=rank, world_size=world_size, port=distributed_port)
    variables = {
        "RANK": placement.rank,
        "WORLD_SIZE": placement.world_size,
        "LOCAL_RANK": placement.local_rank,
        "MASTER_ADDR": placement.address,
        "MASTER_PORT": placement.port,
    }
    for name, value in variables.items():
        os.environ.setdefault(name, str(value))
    if torch.cuda.is_available():
        torch.cuda.set_device(placement.local_rank % torch.cuda.device_count())
    _join(placement, usable_backend(dist_backend), timeout or default_timeout(), init_method)
    if verbose and placement.rank == 0:
        logger.info("%d ranks, started by %s", placement.world_size, placement.origin)


def usable_backend(requested: str | None) -> str:
    """Return the backend to use; with CUDA, one that also communicates host tensors.

    Raises ValueError, with the reason, when the requested one is not usable.
    """
    if requested is None:
        requested = "nccl" if torch.cuda.is_available() else "gloo"
    usable = {
        "gloo": dist.is_gloo_available(),
        "nccl": dist.is_nccl_available() and torch.cuda.is_available(),
        "mpi": dist.is_mpi_available(),
    }
    if requested not in usable and ":" not in requested:
        known = ", ".join(sorted(usable))
        raise ValueError(f"unknown communication backend {requested!r}; available: {known}")
    if not usable.get(requested, True):
        reason = {
            "nccl": "it needs CUDA devices; use gloo on CPU",
            "mpi": "this build of torch has no MPI; use gloo or nccl with the same mpirun",
        }.get(requested, "this build of torch does not include it")
        raise ValueError(f"communication backend {requested!r} cannot be used: {reason}")
    return "cpu:gloo,cuda:nccl" if requested == "nccl" else requested


def _join(placement: Placement, backend: str, timeout: timedelta, init_method: str | None) -> None:
    if placement.origin == "single process" and init_method is None:
        # No port, because several single-process runs may share the machine.
        store = dist.HashStore()  # pyright: ignore[reportPrivateImportUsage]
        dist.init_process_group(backend, store=store, rank=0, world_size=1, timeout=timeout)
        return
    dist.init_process_group(
        backend,
        init_method=init_method or f"tcp://{placement.address}:{placement.port}",
        rank=placement.rank,
        world_size=placement.world_size,
        timeout=timeout,
    )
