"""Rank of this node and rendezvous endpoint: from flags, or from the launcher's environment.

Each flag overrides the corresponding variable of the launcher.
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
from dsconfig import os_errors
from dsconfig.project.errors import UsageError, usage

PORT = 29400
"""Default rendezvous port, as in torchrun."""
COMPARED_PACKAGES = ("dsconfig-zero", "torch", "numpy", "safetensors", "transformers", "accelerate")
"""Packages whose releases affect results; they must be the same on each node."""


class JobFormat(StrEnum):
    """Formats of --emit."""

    SLURM = "slurm"
    SSH = "ssh"
    KUBEFLOW = "kubeflow"
    SKYPILOT = "skypilot"


class NodeAddress(NamedTuple):
    """Rank of this node among ``nodes``; ``endpoint`` is host:port of node 0."""

    nodes: int
    rank: int
    endpoint: str


class RequestedNodes(NamedTuple):
    """Requested number of nodes, and of GPUs per node; None if not specified."""

    nodes: int | None
    gpus: int | None
    """Per node."""
    least: int | None
    """Minimum number of nodes; None if all are required."""
    hosts: hostfiles.Hosts | None


_on_nodes = partial(typer.Option, rich_help_panel="Several nodes")
SLOTS = "HOST[:SLOT,...][@...]"


class NodeOptions(NamedTuple):
    """Nodes and devices of a run, one flag per field."""

    gpus: Annotated[
        int | None,
        typer.Option("--gpus", help="Number of GPUs on all nodes together.", min=1),
    ] = None
    nproc_per_node: Annotated[
        int | None,
        _on_nodes(
            "--nproc-per-node",
            "--nproc",
            help="Processes on this node, one per GPU (default: --gpus / --nodes).",
            min=1,
        ),
    ] = None
    nnodes: Annotated[
        str | None,
        _on_nodes(
            "--nnodes",
            "--nodes",
            metavar="N|MIN:MAX",
            help="Number of nodes, or a range: with --max-restarts, the run continues when nodes "
            "are lost.",
        ),
    ] = None
    node_rank: Annotated[int | None, _on_nodes(help="Rank of this node, from 0.", min=0)] = None
    rdzv_endpoint: Annotated[
        str | None, _on_nodes(metavar="HOST:PORT", help="Address of node 0.")
    ] = None
    max_restarts: Annotated[
        int,
        typer.Option(
            envvar="PET_MAX_RESTARTS",
            help="Restarts of all ranks after a failure.",
            min=0,
        ),
    ] = 0
    local_addr: Annotated[
        str | None, _on_nodes(metavar="HOST", help="Address of this node for the others.")
    ] = None
    join_timeout: Annotated[int, _on_nodes(help="Seconds to wait for other nodes.", min=1)] = 600
    hostfile: Annotated[
        Path | None, _on_nodes(metavar="FILE", help="Hostfile in DeepSpeed's format.")
    ] = None
    include: Annotated[
        str | None, _on_nodes(metavar=SLOTS, help="Include only these hosts and slots.")
    ] = None
    exclude: Annotated[
        str | None, _on_nodes(metavar=SLOTS, help="Exclude these hosts and slots.")
    ] = None
    emit: Annotated[
        JobFormat | None,
        _on_nodes(help="Print a job script instead of running."),
    ] = None

    def requested(self) -> RequestedNodes:
        """Return the requested nodes. Raises UsageError for contradictory flags."""
        text = self.nnodes or torchrun_range(os.environ)
        least, nodes = node_range(text)
        if least == nodes:
            least = None
        elif self.max_restarts == 0:
            raise UsageError(
                f"--nnodes {text} requires --max-restarts: ranks are restarted when a node is lost"
            )
        if self.hostfile is None:
            if self.include or self.exclude:
                raise UsageError("--include and --exclude require --hostfile")
            return RequestedNodes(nodes, self._per_node(nodes), least, None)
        with usage():
            hosts = hostfiles.hosts(self.hostfile, self.include, self.exclude)
            requested = RequestedNodes(len(hosts.names), hosts.ranks, least, hosts)
        for flag, specified, actual in (
            ("nnodes", nodes, requested.nodes),
            ("gpus", self.gpus, hosts.ranks * len(hosts.names)),
            ("nproc-per-node", self.nproc_per_node, hosts.ranks),
        ):
            if specified not in (None, actual):
                raise UsageError(
                    f"--{flag} {specified}: the selected hosts have {actual}; omit the flag, or "
                    "select hosts with --include"
                )
        return requested

    def _per_node(self, nodes: int | None) -> int | None:
        """Return the ranks of a node; None if not specified. Raises UsageError for contradictory
        flags."""
        if self.gpus is None:
            return self.nproc_per_node
        if nodes is None:
            launched = None if self.emit else launched_nodes(os.environ)
            nodes = launched or 1
        share, rest = divmod(self.gpus, nodes)
        if rest or self.nproc_per_node not in (None, share):
            wrong = f"{nodes} nodes cannot have the same number of ranks"
            if not rest:
                wrong = f"that is {share} per node, not --nproc-per-node {self.nproc_per_node}"
            raise UsageError(f"--gpus {self.gpus} is the total of {nodes} nodes: {wrong}")
        return share

    def reject_single_node_flags(self) -> None:
        """Raise UsageError for flags that apply to one node only."""
        for flag, value in (("node-rank", self.node_rank), ("local-addr", self.local_addr)):
            if value is not None:
                raise UsageError(f"--emit covers all nodes; omit --{flag}, which is for one node")

    def address(self, requested: RequestedNodes) -> NodeAddress | None:
        """Return the address of this node; also sets the devices of a hostfile."""
        hosts, rank, endpoint = requested.hosts, self.node_rank, self.rdzv_endpoint
        if hosts is None:
            return node_address(os.environ, requested.nodes, rank, endpoint)
        own = hosts.own_rank() if rank is None else rank
        first = f"{hostfiles.address(hosts.names[0])}:{PORT}"
        address = node_address(os.environ, requested.nodes, own, endpoint or first)
        devices = hosts.devices(address.rank if address else 0)
        if devices is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = devices
        return address


class Launcher(NamedTuple):
    """Environment variables of a launcher."""

    nodes: str
    rank: str
    endpoint: Callable[[Mapping[str, str]], str | None]
    """Address of node 0; None if the launcher does not provide it."""
    on_node: str = ""
    """Local rank of the process on this node."""
    needs: str = ""
    """Variable that must be set; otherwise the names mean something else."""


def node_address(
    environment: Mapping[str, str],
    nodes: int | None = None,
    rank: int | None = None,
    endpoint: str | None = None,
) -> NodeAddress | None:
    """Return the address of this node; None if it is the only one. Raises UsageError."""
    launcher, nodes = _launcher(environment), nodes or launched_nodes(environment)
    if nodes is None or nodes == 1:
        return None
    if launcher is not None and _number(environment, launcher.on_node):
        raise UsageError(
            "dsconfig run starts all ranks of a node itself, but was started several times on this "
            "node: start it once per node (srun --ntasks-per-node=1)"
        )
    if rank is None and launcher is not None:
        rank = _number(environment, launcher.rank)
    if rank is None:
        origin = f" ({_origin_of(nodes, launcher)})" if launcher is not None else ""
        raise UsageError(f"{nodes} nodes{origin} require --node-rank (0 to {nodes - 1})")
    if not 0 <= rank < nodes:
        raise UsageError(
            f"--node-rank {rank} is out of range: {nodes} nodes have ranks 0 to {nodes - 1}"
        )
    endpoint = endpoint or (launcher and launcher.endpoint(environment))
    if endpoint is None:
        raise UsageError(
            f"{nodes} nodes require the address of node 0: --rdzv-endpoint HOST:{PORT}"
        )
    return NodeAddress(nodes, rank, with_port(endpoint))


def _origin_of(nodes: int, launcher: Launcher) -> str:
    return f"{launcher.nodes}={nodes} in the environment; unset it to train on this node alone"


def launched_nodes(environment: Mapping[str, str]) -> int | None:
    """Return the number of nodes on which a launcher has started this program; None without one."""
    launcher = _launcher(environment)
    return None if launcher is None else _number(environment, launcher.nodes)


def _launcher(environment: Mapping[str, str]) -> Launcher | None:
    """Return the launcher that has started this process, if any."""
    return next((entry for entry in LAUNCHERS if _has_started(entry, environment)), None)


def _has_started(launcher: Launcher, environment: Mapping[str, str]) -> bool:
    applies = not launcher.needs or launcher.needs in environment
    return applies and _number(environment, launcher.nodes) is not None


def node_range(text: str | None) -> tuple[int | None, int | None]:
    """Parse ``N`` or ``MIN:MAX`` as torchrun does. Raises UsageError."""
    if text is None:
        return None, None
    least, colon, most = text.partition(":")
    numbers = [least, most] if colon else [least, least]
    if not all(re.fullmatch(r"0*[1-9]\d{0,5}", number) for number in numbers):
        raise UsageError(f"--nnodes {text}: expected N or MIN:MAX")
    few, many = map(int, numbers)
    if few > many:
        raise UsageError(f"--nnodes {text}: MIN exceeds MAX")
    return few, many


def torchrun_range(environment: Mapping[str, str]) -> str | None:
    """Return ``MIN:MAX`` of torchrun's variable; other launchers set a number."""
    text = environment.get("PET_NNODES", "")
    return text if ":" in text else None


def with_port(endpoint: str) -> str:
    """Return ``host:port``; IPv6 addresses without brackets, as in torch. Raises UsageError."""
    host, colon, port = endpoint.rpartition(":")
    if not colon or endpoint.endswith("]") or host.endswith(":"):  # no port
        host, port = endpoint, str(PORT)
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if not host or not port.isdecimal() or not 0 < int(port[:6]) < 2**16:
        raise UsageError(f"--rdzv-endpoint {endpoint}: expected HOST:PORT")
    return f"{host}:{port}"


def _number(environment: Mapping[str, str], name: str) -> int | None:
    text = environment.get(name, "").partition(":")[2] or environment.get(name, "")
    return int(text) if text.isdecimal() else None


def _master(environment: Mapping[str, str], prefix: str = "") -> str | None:
    host, port = (environment.get(f"{prefix}MASTER_{part}") for part in ("ADDR", "PORT"))
    return f"{host}:{port}" if host and port else host or None


def _first_of_slurm(environment: Mapping[str, str]) -> str | None:
    listed = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST", "")
    return first_host(listed)


def _of_torchrun(environment: Mapping[str, str]) -> str | None:
    return environment.get("PET_RDZV_ENDPOINT") or _master(environment, "PET_")


def _first_of_skypilot(environment: Mapping[str, str]) -> str | None:
    return next(iter(environment.get("SKYPILOT_NODE_IPS", "").split()), None)


LAUNCHERS = (
    # torchrun, and Kubeflow's Trainer
    Launcher("PET_NNODES", "PET_NODE_RANK", _of_torchrun),
    Launcher("SKYPILOT_NUM_NODES", "SKYPILOT_NODE_RANK", _first_of_skypilot),
    # a step of srun; a batch script alone runs on one node
    Launcher("SLURM_STEP_NUM_NODES", "SLURM_NODEID", _first_of_slurm, "SLURM_LOCALID"),
    # mpirun with one process per node: Open MPI or PMI
    Launcher("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", _master, "OMPI_COMM_WORLD_LOCAL_RANK"),
    Launcher("PMI_SIZE", "PMI_RANK", _master, "MPI_LOCALRANKID"),
    # Kubeflow's PyTorchJob; elsewhere these variables are about ranks, not nodes
    Launcher("WORLD_SIZE", "RANK", _master, needs="KUBERNETES_SERVICE_HOST"),
)


def first_host(listed: str) -> str | None:
    """Return the first host of a Slurm list: gpu07 of ``gpu[07-09,12],login1``."""
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])+", listed)
    return None if first is None else re.sub(r"\[([0-9]+)[^\]]*\]", r"\1", first[0])


def fingerprint(file: str, script: list[str]) -> dict[str, Any]:
    """Return everything that must be the same on each node, by name."""
    return {
        "Python": ".".join(map(str, sys.version_info[:3])),
        **{name: _version(name) for name in COMPARED_PACKAGES},
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
    """Return the first digits of the SHA-256 of a file; empty if it is not a file."""
    if not os_errors.is_file(path):
        return ""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12]
