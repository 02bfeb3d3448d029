"""Which of how many nodes this one is, and where they meet: by flags, else by who started it.

Flags win over the variables of every launcher, field by field.
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


class Launcher(NamedTuple):
    """The variables in which a launcher tells a process where it is."""

    nodes: str
    rank: str
    endpoint: Callable[[Mapping[str, str]], str | None]
    """Where node 0 is, None where it does not say."""
    on_node: str = ""
    """Which of the processes that it started on this node."""
    needs: str = ""
    """Where this one is not set, the names mean something else."""


def place(
    environment: Mapping[str, str],
    nodes: int | None = None,
    rank: int | None = None,
    endpoint: str | None = None,
) -> Place | None:
    """The place of this node; None where it is the only one. Raises UsageError."""
    told = next((each for each in LAUNCHERS if _has_started(each, environment)), None)
    if nodes is None and told is not None:
        nodes = _number(environment, told.nodes)
    if nodes is None or nodes == 1:
        return None
    if told is not None and _number(environment, told.on_node):
        raise UsageError(
            "run was started several times on this node; it starts the ranks itself, so start it "
            "once for each node (srun --ntasks-per-node=1)"
        )
    if rank is None and told is not None:
        rank = _number(environment, told.rank)
    if rank is None:
        raise UsageError(f"{nodes} nodes: say which one this is, --node-rank 0 to {nodes - 1}")
    if not 0 <= rank < nodes:
        raise UsageError(f"--node-rank {rank}: the ranks of {nodes} nodes are 0 to {nodes - 1}")
    endpoint = endpoint or (told and told.endpoint(environment))
    if endpoint is None:
        raise UsageError(f"{nodes} nodes: say where node 0 is, --rdzv-endpoint HOST:{PORT}")
    return Place(nodes, rank, with_port(endpoint))


def _has_started(launcher: Launcher, environment: Mapping[str, str]) -> bool:
    is_meant = not launcher.needs or launcher.needs in environment
    return is_meant and _number(environment, launcher.nodes) is not None


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


def _master(environment: Mapping[str, str], before: str = "") -> str | None:
    host, port = (environment.get(f"{before}MASTER_{what}") for what in ("ADDR", "PORT"))
    return f"{host}:{port}" if host and port else host or None


def _first_of_slurm(environment: Mapping[str, str]) -> str | None:
    listed = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST", "")
    return first_host(listed)


def _of_torchrun(environment: Mapping[str, str]) -> str | None:
    return environment.get("PET_RDZV_ENDPOINT") or _master(environment, "PET_")


def _first_of_skypilot(environment: Mapping[str, str]) -> str | None:
    return next(iter(environment.get("SKYPILOT_NODE_IPS", "").split()), None)


LAUNCHERS = (
    # torchrun's own variables, which Kubeflow's Trainer sets
    Launcher("PET_NNODES", "PET_NODE_RANK", _of_torchrun),
    Launcher("SKYPILOT_NUM_NODES", "SKYPILOT_NODE_RANK", _first_of_skypilot),
    # a step of srun; a batch script by itself runs on one node
    Launcher("SLURM_STEP_NUM_NODES", "SLURM_NODEID", _first_of_slurm, "SLURM_LOCALID"),
    # mpirun with one process on each node: Open MPI, or what speaks PMI
    Launcher("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", _master, "OMPI_COMM_WORLD_LOCAL_RANK"),
    Launcher("PMI_SIZE", "PMI_RANK", _master, "MPI_LOCALRANKID"),
    # a pod of Kubeflow's PyTorchJob; elsewhere these names mean ranks, not nodes
    Launcher("WORLD_SIZE", "RANK", _master, needs="KUBERNETES_SERVICE_HOST"),
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
