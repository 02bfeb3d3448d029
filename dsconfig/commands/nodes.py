"""Which of how many nodes this one is, and where they meet: by flags, else by who started it.

Flags win over the variables of every launcher, field by field.
"""

import hashlib
import os
import re
import sys
from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from dsconfig import hostfile as hostfiles
from dsconfig.commands.errors import UsageError, usage

PORT = 29400
"""Where nodes meet when nobody says: torchrun's own choice."""
COMPARED = ("dsconfig-zero", "torch", "numpy", "safetensors", "transformers", "accelerate")
"""Packages whose releases decide what is computed."""


class Form(StrEnum):
    """A job of a cluster, as text."""

    SLURM = "slurm"
    SSH = "ssh"


class Place(NamedTuple):
    """This node's ``rank`` among ``nodes``; ``endpoint`` is host:port of node 0."""

    nodes: int
    rank: int
    endpoint: str


class Wanted(NamedTuple):
    """How many nodes there are to be, and with what; None where nobody says."""

    nodes: int | None
    gpus: int | None
    """Of each node."""
    least: int | None
    """The fewest nodes that will do, None where all are needed."""
    hosts: hostfiles.Hosts | None


_on_nodes = partial(typer.Option, rich_help_panel="Several nodes")
SLOTS = "HOST[:SLOT,...][@...]"


class Where(NamedTuple):
    """On which devices of which nodes a run is, a flag for each."""

    gpus: Annotated[
        int | None,
        typer.Option("--gpus", "--nproc", help="Processes on this node, one per device.", min=1),
    ] = None
    nnodes: Annotated[
        str | None,
        _on_nodes(
            "--nnodes",
            "--nodes",
            metavar="N|MIN:MAX",
            help="Number of nodes; with MIN, and --max-restarts, a run goes on when nodes are "
            "lost.",
        ),
    ] = None
    node_rank: Annotated[
        int | None, _on_nodes(help="Which of the nodes this is, from 0.", min=0)
    ] = None
    rdzv_endpoint: Annotated[
        str | None, _on_nodes(metavar="HOST:PORT", help="Where node 0 is.")
    ] = None
    max_restarts: Annotated[
        int,
        typer.Option(
            envvar="PET_MAX_RESTARTS",
            help="How often all ranks start again after one fails.",
            min=0,
        ),
    ] = 0
    local_addr: Annotated[str | None, _on_nodes(help="What the others call this node.")] = None
    join_timeout: Annotated[int, _on_nodes(help="Seconds to wait for the other nodes.", min=1)] = (
        600
    )
    hostfile: Annotated[Path | None, _on_nodes(help="The nodes, in DeepSpeed's form.")] = None
    include: Annotated[str | None, _on_nodes(metavar=SLOTS, help="Of the hostfile, these.")] = None
    exclude: Annotated[
        str | None, _on_nodes(metavar=SLOTS, help="Of the hostfile, all but these.")
    ] = None
    emit: Annotated[
        Form | None,
        _on_nodes(help="Print the job that starts this on a cluster, and start nothing."),
    ] = None

    def wanted(self) -> Wanted:
        """What is asked for, of the hostfile the hosts that are meant. Raises UsageError for flags
        that contradict each other.
        """
        asked = self.nnodes or told_span(os.environ)
        least, nodes = span(asked)
        if least == nodes:
            least = None
        elif self.max_restarts == 0:
            raise UsageError(
                f"--nnodes {asked}: the others start again when a node is lost, which "
                "--max-restarts allows; give it as well"
            )
        if self.hostfile is None:
            if self.include or self.exclude:
                raise UsageError("--include and --exclude choose among the hosts of --hostfile")
            return Wanted(nodes, self.gpus, least, None)
        with usage():
            hosts = hostfiles.hosts(self.hostfile, self.include, self.exclude)
            found = Wanted(len(hosts.names), hosts.ranks, least, hosts)
        for flag, given, there in (("nnodes", nodes, found.nodes), ("gpus", self.gpus, found.gpus)):
            if given not in (None, there):
                raise UsageError(
                    f"--{flag} {given}: the hosts chosen have {there}; leave the flag out, or "
                    "choose with --include"
                )
        return found

    def insist_on_all_nodes(self) -> None:
        """Raises UsageError for flags that tell of one of them."""
        for flag, given in (("node-rank", self.node_rank), ("local-addr", self.local_addr)):
            if given is not None:
                raise UsageError(
                    f"--emit prints the job of all nodes; --{flag} is of one: leave it out"
                )

    def place(self, wanted: Wanted) -> Place | None:
        """This node's place among all; of a hostfile also the devices that it trains on."""
        hosts, rank, endpoint = wanted.hosts, self.node_rank, self.rdzv_endpoint
        if hosts is None:
            return place(os.environ, wanted.nodes, rank, endpoint)
        own = hosts.own_rank() if rank is None else rank
        first = f"{hostfiles.address(hosts.names[0])}:{PORT}"
        found = place(os.environ, wanted.nodes, own, endpoint or first)
        devices = hosts.devices(found.rank if found else 0)
        if devices is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = devices
        return found


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
