"""Which rank of how many this process is, as its launcher says it."""

import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

DEFAULT_PORT = 29500


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """``origin`` names the launcher; ``address`` and ``port`` are those of rank 0."""

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
    """Find this process's place among its peers.

    Looked at in this order: ``rank`` and ``world_size`` as given (``mp.spawn``), the variables
    of torchrun and of DeepSpeed's launcher, those of Open MPI, MVAPICH, Intel MPI and MPICH,
    those of srun. A process with none of them trains alone.

    Raises ValueError when a launcher's variables are incomplete.
    """
    arguments = sys.argv if arguments is None else arguments
    is_given = rank >= 0 and world_size > 0
    if is_given or ("RANK" in environment and "WORLD_SIZE" in environment):
        if not is_given:
            rank, world_size = int(environment["RANK"]), int(environment["WORLD_SIZE"])
        local = _local_rank(environment, arguments, rank)
        origin = "arguments" if is_given else "environment"
        return _place(environment, rank, world_size, local, port, origin)
    found = _from_mpi(environment, port) or _from_slurm(environment, port)
    if found is not None:
        return found
    if "RANK" in environment or int(environment.get("WORLD_SIZE", "1")) > 1:
        raise ValueError("RANK and WORLD_SIZE must both be set, or neither; use torchrun")
    return _place(environment, 0, 1, 0, port, "single process")


def node_count(world_size: int, environment: Mapping[str, str] = os.environ) -> int:
    """Return on how many nodes the launcher says it has started ``world_size`` ranks; else 1."""
    nodes = environment.get("SLURM_STEP_NUM_NODES", "")
    if "LOCAL_WORLD_SIZE" not in environment and nodes.isdigit():
        return max(1, int(nodes))
    agents = environment.get("GROUP_WORLD_SIZE", "")
    if agents.isdigit() and int(agents) > 0:  # torchrun's, whose nodes need not be alike
        return int(agents)
    for name in ("LOCAL_WORLD_SIZE", "LOCAL_SIZE", *(each[-1] for each in _MPI)):
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


def _place(
    environment: Mapping[str, str],
    rank: int,
    world_size: int,
    local_rank: int,
    port: int,
    origin: str,
    address: str = "127.0.0.1",
) -> Placement:
    if not 0 <= rank < world_size:
        raise ValueError(f"rank {rank} does not exist in a world of {world_size} ({origin})")
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
"""Name, and the variables for rank, size, local rank and local size."""


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
        return _place(environment, int(environment[rank]), world, local, port, name)
    return None


def _from_slurm(environment: Mapping[str, str], port: int) -> Placement | None:
    # Only a job step has SLURM_STEP_NUM_TASKS: a batch script that runs python without srun
    # is one process, whatever SLURM_NTASKS says.
    if "SLURM_PROCID" not in environment or "SLURM_STEP_NUM_TASKS" not in environment:
        return None
    nodes = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_NODELIST", "")
    rank, ranks = int(environment["SLURM_PROCID"]), int(environment["SLURM_STEP_NUM_TASKS"])
    local = int(environment.get("SLURM_LOCALID", "0"))
    first = first_node(nodes) or "127.0.0.1"
    return _place(environment, rank, ranks, local, port, "srun", first)


def first_node(node_list: str) -> str:
    """Return the first host of a Slurm node list: ``gpu[03-07,12],login`` gives ``gpu03``."""
    match = re.match(r"([^\[,]*)(?:\[([^\],-]+)[^\]]*\]([^,]*))?", node_list)
    if match is None:
        return ""
    return match[1] + (match[2] or "") + (match[3] or "")
