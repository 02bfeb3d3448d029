"""Rank and world size of this process, from its launcher's environment variables."""

import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

DEFAULT_PORT = 29500


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Rank and address of this process. ``origin``: the launcher; ``address``: rank 0's host."""

    rank: int
    world_size: int
    local_rank: int
    address: str
    port: int
    origin: str


def discover(
    environment: Mapping[str, str] = os.environ,
    arguments: Sequence[str] | None = None,
    *,
    rank: int = -1,
    world_size: int = -1,
    port: int = DEFAULT_PORT,
) -> Placement:
    """Return this process's rank and world size.

    Sources, in this order: ``rank`` and ``world_size`` as passed (``mp.spawn``), the variables of
    torchrun and of DeepSpeed's launcher, those of Open MPI, MVAPICH, Intel MPI and MPICH, those of
    srun. Without any of them this is a single process.

    Raises ValueError when a launcher's variables are incomplete.
    """
    arguments = sys.argv if arguments is None else arguments
    is_passed = rank >= 0 and world_size > 0
    if is_passed or ("RANK" in environment and "WORLD_SIZE" in environment):
        if not is_passed:
            rank, world_size = int(environment["RANK"]), int(environment["WORLD_SIZE"])
        local = _local_rank(environment, arguments, rank)
        origin = "arguments" if is_passed else "environment"
        return _placement(environment, rank, world_size, local, port, origin)
    placement = _from_mpi(environment, port) or _from_slurm(environment, port)
    if placement is not None:
        return placement
    if "RANK" in environment or int(environment.get("WORLD_SIZE", "1")) > 1:
        raise ValueError("RANK and WORLD_SIZE must be set together; use torchrun")
    return _placement(environment, 0, 1, 0, port, "single process")


def node_count(world_size: int, environment: Mapping[str, str] = os.environ) -> int:
    """Return how many nodes the launcher uses for ``world_size`` ranks (default: 1)."""
    nodes = environment.get("SLURM_STEP_NUM_NODES", "")
    if "LOCAL_WORLD_SIZE" not in environment and nodes.isdigit():
        return max(1, int(nodes))
    agents = environment.get("GROUP_WORLD_SIZE", "")
    if agents.isdigit() and int(agents) > 0:  # torchrun, whose nodes may have unequal rank counts
        return int(agents)
    for name in ("LOCAL_WORLD_SIZE", "LOCAL_SIZE", *(variables[-1] for _, *variables in _MPI)):
        size = environment.get(name, "")
        if size.isdigit() and int(size) > 0:
            return max(1, -(-world_size // int(size)))
    return 1


def local_rank_argument(arguments: Sequence[str]) -> int | None:
    """Return N of ``--local_rank=N`` (or ``--local-rank N``), as older launchers pass it."""
    for position, argument in enumerate(arguments):
        match = re.fullmatch(r"--local[_-]rank(?:=(-?\d+))?", argument)
        if match is None:
            continue
        value = match[1] or (arguments[position + 1] if position + 1 < len(arguments) else "")
        if re.fullmatch(r"-?\d+", value) and int(value) >= 0:
            return int(value)
    return None


def _local_rank(environment: Mapping[str, str], arguments: Sequence[str], rank: int) -> int:
    if "LOCAL_RANK" in environment:
        return int(environment["LOCAL_RANK"])
    argument = local_rank_argument(arguments)
    if argument is not None:
        return argument
    per_node = int(environment.get("LOCAL_WORLD_SIZE", "0"))
    return rank % per_node if per_node else rank


def _placement(
    environment: Mapping[str, str],
    rank: int,
    world_size: int,
    local_rank: int,
    port: int,
    origin: str,
    address: str = "127.0.0.1",
) -> Placement:
    if not 0 <= rank < world_size:
        raise ValueError(f"rank {rank} is out of range for world size {world_size} ({origin})")
    return Placement(
        rank=rank,
        world_size=world_size,
        local_rank=local_rank,
        address=environment.get("MASTER_ADDR", address),
        port=int(environment.get("MASTER_PORT", port)),
        origin=origin,
    )


_NUMBERS = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
_MPI = (
    ("Open MPI", *(f"OMPI_COMM_WORLD_{number}" for number in _NUMBERS)),
    ("MVAPICH", *(f"MV2_COMM_WORLD_{number}" for number in _NUMBERS)),
    ("MPI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)
"""Launcher name, and its variables for rank, size, local rank and local size."""


def _from_mpi(environment: Mapping[str, str], port: int) -> Placement | None:
    for name, rank, size, local_rank, local_size in _MPI:
        if rank not in environment or size not in environment:
            continue
        world = int(environment[size])
        on_one_node = int(environment.get(local_size, world)) == world
        if not on_one_node and "MASTER_ADDR" not in environment:
            raise ValueError(
                f"{name} started {world} ranks on several nodes without MASTER_ADDR; pass the "
                "first node's address, e.g. mpirun -x MASTER_ADDR=node1"
            )
        local = int(environment.get(local_rank, environment[rank]))
        return _placement(environment, int(environment[rank]), world, local, port, name)
    return None


def _from_slurm(environment: Mapping[str, str], port: int) -> Placement | None:
    # Only a job step has SLURM_STEP_NUM_TASKS: a batch script that runs python without srun is a
    # single process, whatever SLURM_NTASKS is.
    if "SLURM_PROCID" not in environment or "SLURM_STEP_NUM_TASKS" not in environment:
        return None
    nodes = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_NODELIST", "")
    rank, ranks = int(environment["SLURM_PROCID"]), int(environment["SLURM_STEP_NUM_TASKS"])
    local = int(environment.get("SLURM_LOCALID", "0"))
    first = first_node(nodes) or "127.0.0.1"
    return _placement(environment, rank, ranks, local, port, "srun", first)


def first_node(node_list: str) -> str:
    """Return the first host of a Slurm node list: ``gpu[03-07,12],login`` gives ``gpu03``."""
    match = re.match(r"([^\[,]*)(?:\[([^\],-]+)[^\]]*\]([^,]*))?", node_list)
    if match is None:
        return ""
    return match[1] + (match[2] or "") + (match[3] or "")
