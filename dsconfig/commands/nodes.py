"""Which of how many nodes this one is, and where they meet: by flags, else by who started it.

Each reader below takes the variables of one launcher; flags win over all of them, field by field.
"""

import hashlib
import re
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

from dsconfig.commands.errors import UsageError

PORT = 29400
"""Where nodes meet when nobody says: torchrun's own choice."""
COMPARED = ("dsconfig-zero", "torch", "numpy", "safetensors", "transformers", "accelerate")
"""Packages whose releases decide what is computed."""


class Place(NamedTuple):
    """This node's ``rank`` among ``nodes``; ``endpoint`` is host:port of node 0."""

    nodes: int
    rank: int
    endpoint: str


class _Told(NamedTuple):
    """What a launcher says, None where it does not."""

    nodes: int | None = None
    rank: int | None = None
    endpoint: str | None = None
    on_node: int = 0
    """Which of the processes that it started on this node."""


def place(
    environment: Mapping[str, str],
    nodes: int | None = None,
    rank: int | None = None,
    endpoint: str | None = None,
) -> Place | None:
    """The place of this node; None where it is the only one. Raises UsageError."""
    told = next(filter(None, (read(environment) for read in READERS)), _Told())
    nodes = told.nodes if nodes is None else nodes
    if nodes is None or nodes == 1:
        return None
    if told.on_node:
        raise UsageError(
            "run was started several times on this node; it starts the ranks itself, so start it "
            "once for each node (srun --ntasks-per-node=1)"
        )
    rank = told.rank if rank is None else rank
    if rank is None:
        raise UsageError(f"{nodes} nodes: say which one this is, --node-rank 0 to {nodes - 1}")
    if not 0 <= rank < nodes:
        raise UsageError(f"--node-rank {rank}: the ranks of {nodes} nodes are 0 to {nodes - 1}")
    endpoint = endpoint or told.endpoint
    if endpoint is None:
        raise UsageError(f"{nodes} nodes: say where node 0 is, --rdzv-endpoint HOST:{PORT}")
    return Place(nodes, rank, with_port(endpoint))


def span(text: str | None) -> tuple[int | None, int | None]:
    """The fewest and the most nodes of ``N`` or ``MIN:MAX``, as torchrun writes it.

    Raises UsageError.
    """
    if text is None:
        return None, None
    least, colon, most = text.partition(":")
    numbers = [least, most] if colon else [least, least]
    if not all(re.fullmatch(r"0*[1-9]\d{0,5}", each) for each in numbers):
        raise UsageError(f"--nnodes {text}: write it as N, or as MIN:MAX")
    few, many = map(int, numbers)
    if few > many:
        raise UsageError(f"--nnodes {text}: the first is the fewest, the second the most")
    return few, many


def told_span(environment: Mapping[str, str]) -> str | None:
    """``MIN:MAX`` where torchrun's variable holds one; that of any other launcher is a number."""
    text = environment.get("PET_NNODES", "")
    return text if ":" in text else None


def with_port(endpoint: str) -> str:
    """``host:port``, an IPv6 address without brackets, as torch has it. Raises UsageError."""
    host, colon, port = endpoint.rpartition(":")
    if not colon or endpoint.endswith("]") or host.endswith(":"):  # the address alone
        host, port = endpoint, str(PORT)
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if not host or not port.isdecimal() or not 0 < int(port[:6]) < 2**16:
        raise UsageError(f"--rdzv-endpoint {endpoint}: write it as HOST:PORT")
    return f"{host}:{port}"


def _number(environment: Mapping[str, str], name: str) -> int | None:
    text = environment.get(name, "").partition(":")[2] or environment.get(name, "")
    return int(text) if text.isdecimal() else None


def _joined(host: str | None, port: str | None) -> str | None:
    return f"{host}:{port}" if host and port else host or None


def _pet(environment: Mapping[str, str]) -> _Told | None:
    """torchrun's own variables, which Kubeflow's Trainer sets."""
    nodes = _number(environment, "PET_NNODES")
    if nodes is None:
        return None
    master = _joined(environment.get("PET_MASTER_ADDR"), environment.get("PET_MASTER_PORT"))
    endpoint = environment.get("PET_RDZV_ENDPOINT") or master
    return _Told(nodes, _number(environment, "PET_NODE_RANK"), endpoint)


def _slurm(environment: Mapping[str, str]) -> _Told | None:
    """A step of srun; a batch script by itself runs on one node."""
    nodes = _number(environment, "SLURM_STEP_NUM_NODES")
    if nodes is None:
        return None
    listed = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST", "")
    on_node = _number(environment, "SLURM_LOCALID") or 0
    return _Told(nodes, _number(environment, "SLURM_NODEID"), first_host(listed), on_node)


def _skypilot(environment: Mapping[str, str]) -> _Told | None:
    nodes = _number(environment, "SKYPILOT_NUM_NODES")
    if nodes is None:
        return None
    hosts = environment.get("SKYPILOT_NODE_IPS", "").split()
    rank = _number(environment, "SKYPILOT_NODE_RANK")
    return _Told(nodes, rank, hosts[0] if hosts else None)


def _mpi(environment: Mapping[str, str]) -> _Told | None:
    """mpirun with one process on each node: Open MPI, or what speaks PMI."""
    master = _joined(environment.get("MASTER_ADDR"), environment.get("MASTER_PORT"))
    for size, rank, on_node in (
        ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"),
        ("PMI_SIZE", "PMI_RANK", "MPI_LOCALRANKID"),
    ):
        nodes = _number(environment, size)
        if nodes is not None:
            local = _number(environment, on_node) or 0
            return _Told(nodes, _number(environment, rank), master, local)
    return None


def _kubeflow(environment: Mapping[str, str]) -> _Told | None:
    """A pod of Kubeflow's PyTorchJob. Elsewhere these names mean ranks, not nodes."""
    nodes = _number(environment, "WORLD_SIZE")
    if nodes is None or "KUBERNETES_SERVICE_HOST" not in environment:
        return None
    master = _joined(environment.get("MASTER_ADDR"), environment.get("MASTER_PORT"))
    return _Told(nodes, _number(environment, "RANK"), master)


READERS: tuple[Callable[[Mapping[str, str]], _Told | None], ...] = (
    _pet,
    _skypilot,
    _slurm,
    _mpi,
    _kubeflow,
)


def first_host(listed: str) -> str | None:
    """``gpu[07-09,12],login1`` as Slurm writes it: gpu07."""
    found = re.match(r"(?:[^,\[]|\[[^\]]*\])+", listed)
    return None if found is None else re.sub(r"\[([0-9]+)[^\]]*\]", r"\1", found[0])


def fingerprint(file: str, script: list[str]) -> dict[str, Any]:
    """What has to be the same on every node, by name."""
    return {
        "Python": ".".join(map(str, sys.version_info[:3])),
        **{name: _version(name) for name in COMPARED},
        f"the config {Path(file).name}": _digest(Path(file)),
        f"the script {Path(script[0]).name}": _digest(Path(script[0])),
        "the script's arguments": " ".join(script[1:]),
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _digest(path: Path) -> str:
    """The first digits of a SHA-256; empty for what is no file."""
    if not path.is_file():
        return ""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12]
