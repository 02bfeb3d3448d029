"""init_distributed: joins the process group, whatever started the process."""

import os
from datetime import timedelta
from logging import getLogger
from typing import Any

import torch
import torch.distributed as dist

from dsengine.communication.ending import end_in_order
from dsengine.communication.environment import DEFAULT_PORT, Placement, discover

logger = getLogger("dsengine.comm")


def default_timeout() -> timedelta:
    """30 minutes, or DEEPSPEED_TIMEOUT minutes where that is set."""
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
    """Join the process group under torchrun, mpirun, srun, ``mp.spawn`` or alone.

    Does nothing when a group exists. Afterwards RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and
    MASTER_PORT are set, as training scripts expect, and the current CUDA device is this rank's.

    Raises ValueError for an unknown or unusable backend, for a launcher whose variables are
    incomplete, and when ``dist_init_required`` is False but no group exists.
    """
    end_in_order()
    if dist.is_initialized():
        return
    if dist_init_required is False:
        raise ValueError(
            "dist_init_required=False, but no process group exists: call "
            "torch.distributed.init_process_group first, or leave the argument out"
        )
    if not auto_mpi_discovery and not {"RANK", "WORLD_SIZE"} <= set(os.environ) and rank < 0:
        raise ValueError("RANK and WORLD_SIZE are not set and auto_mpi_discovery is False")
    place = discover(rank=rank, world_size=world_size, port=distributed_port)
    told = {
        "RANK": place.rank,
        "WORLD_SIZE": place.world_size,
        "LOCAL_RANK": place.local_rank,
        "MASTER_ADDR": place.address,
        "MASTER_PORT": place.port,
    }
    for name, value in told.items():
        os.environ.setdefault(name, str(value))
    if torch.cuda.is_available():
        torch.cuda.set_device(place.local_rank % torch.cuda.device_count())
    _join(place, usable_backend(dist_backend), timeout or default_timeout(), init_method)
    if verbose and place.rank == 0:
        logger.info("%d ranks, started by %s", place.world_size, place.origin)


def usable_backend(requested: str | None) -> str:
    """Return the backend to use; with CUDA, one that can also move host tensors.

    Raises ValueError, with the reason, when the requested one cannot work here.
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
        raise ValueError(f"unknown communication backend {requested!r}; known: {known}")
    if not usable.get(requested, True):
        reason = {
            "nccl": "it needs CUDA devices; use gloo on CPU",
            "mpi": "this build of torch has no MPI; use gloo or nccl with the same mpirun",
        }.get(requested, "this build of torch does not have it")
        raise ValueError(f"communication backend {requested!r} cannot be used: {reason}")
    return "cpu:gloo,cuda:nccl" if requested == "nccl" else requested


def _join(place: Placement, backend: str, timeout: timedelta, init_method: str | None) -> None:
    if place.origin == "single process" and init_method is None:
        # No port: several single-process runs may share the machine.
        store = dist.HashStore()  # pyright: ignore[reportPrivateImportUsage]
        dist.init_process_group(backend, store=store, rank=0, world_size=1, timeout=timeout)
        return
    dist.init_process_group(
        backend,
        init_method=init_method or f"tcp://{place.address}:{place.port}",
        rank=place.rank,
        world_size=place.world_size,
        timeout=timeout,
    )
