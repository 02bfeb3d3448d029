"""Job scripts for clusters: a Slurm batch script, or a shell script over ssh.

Both start ``dsconfig run`` once per node, with the current Python and working directory; node 0
makes the plan and sends it to the others.
"""

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from dsconfig.commands.node_options import PORT
from dsconfig.facts.request import flag_of
from dsconfig.hostfile import Hosts, address
from dsconfig.project.errors import UsageError
from dsconfig.report import writers

SHUTDOWN_SECONDS = 30
"""Seconds of a job after the grace period of its ranks at the Slurm time limit."""
LONGEST_NAME = 64
"""Characters of a job's name."""
FORWARDED = ("NCCL_", "UCX_", "GLOO_", "PYTHONPATH")
"""Prefixes of environment variables passed over ssh: communication and import paths."""


class Job(NamedTuple):
    """A run on ``nodes``, with ``ranks`` per node."""

    nodes: int
    ranks: int
    command: Sequence[str]
    """``run FILE [flags] -- SCRIPT [arguments]``, without flags of single nodes."""
    notes: Sequence[str]
    """Comments that describe the run."""
    uses_gpus: bool
    restarts: int
    grace: int
    least: int | None = None
    """Minimum number of nodes if fewer than ``nodes`` are enough."""
    hosts: Hosts | None = None
    endpoint: str | None = None
    device: str | None = None
    """Name of the GPU, if known."""

    @property
    def name(self) -> str:
        """Name of the script."""
        return Path(self.command[self.command.index("--") + 1]).stem

    @property
    def node_range(self) -> str:
        """Value of ``--nnodes``."""
        return f"{self.least}:{self.nodes}" if self.least else f"{self.nodes}"


def command(file: str, flags: Mapping[str, object], program: Sequence[str]) -> list[str]:
    """Return the arguments of ``dsconfig`` that repeat this run; lists are repeated flags."""
    arguments = ["run", file]
    for name, value in flags.items():
        for item in value if isinstance(value, list) else [value]:  # pyright: ignore[reportUnknownVariableType]
            if item is not None:
                arguments += [flag_of(name), *([] if item is True else [str(item)])]  # pyright: ignore[reportUnknownArgumentType]
    return [*arguments, "--", *program]


def slurm(job: Job) -> str:
    """Return a script for ``sbatch``. Raises UsageError for slots, which Slurm assigns."""
    if job.hosts is not None and job.hosts.are_filtered:
        raise UsageError(
            "--emit slurm: Slurm assigns the devices of a node; specify hosts without slots"
        )
    options = {
        "job-name": re.sub(r"[^A-Za-z0-9_.+-]", "_", job.name)[
            :LONGEST_NAME
        ],  # sbatch reads no quotes
        "nodes": job.nodes,
        "ntasks-per-node": 1,
        "gpus-per-node": job.ranks if job.uses_gpus else None,
        "nodelist": ",".join(job.hosts.names) if job.hosts else None,
        "exclusive": "",
        "mem": 0,
        "output": "%x-%j.log",
        "signal": f"TERM@{job.grace + SHUTDOWN_SECONDS}",
        # Keep the job if a node fails and ranks can be restarted.
        "no-kill": "" if job.restarts else None,
    }
    # Slurm does not provide the minimum number of nodes or a custom endpoint.
    extra = ["--nnodes", job.node_range] if job.least else []
    extra += ["--rdzv-endpoint", job.endpoint] if job.endpoint and job.nodes > 1 else []
    lines = [
        "#!/bin/bash",
        *map(writers.comment, job.notes),
        "# Set partition, account and time limit: sbatch --partition=P --time=H:M:S FILE",
        *(
            f"#SBATCH --{name}" + (f"={value}" if value != "" else "")
            for name, value in options.items()
            if value is not None
        ),
        "",
        f"cd -- {writers.shell([str(Path.cwd())])} || exit 1",
        # One launcher per node: without binding, its ranks can use all cores.
        f"srun --cpu-bind=none --kill-on-bad-exit={0 if job.restarts else 1} \\",
        f"    {writers.shell(_words(job, extra))}",
    ]
    return "\n".join(lines)


def ssh(job: Job) -> str:
    """Return a script that starts each node over ssh, and stops all when it is stopped.

    Raises UsageError without a hostfile.
    """
    if job.hosts is None:
        raise UsageError("--emit ssh requires --hostfile")
    lines = [
        "#!/bin/bash",
        *map(writers.comment, job.notes),
        "nodes=() code=0",
        "# With a terminal (-tt), a node stops its ranks when this script ends.",
        """trap 'code=143; kill "${nodes[@]}" 2>/dev/null' INT TERM HUP""",
        *(
            f"{writers.shell(['ssh', '-n', '-tt', '--', name, command])} & nodes+=($!)"
            for name, command in _remote_commands(job)
        ),
        'for node in "${nodes[@]}"; do',
        '    wait "$node"; ended=$?',
        "    # A signal interrupts wait, not the node.",
        '    while kill -0 "$node" 2>/dev/null; do wait "$node"; ended=$?; done',
        "    ((ended && !code)) && code=$ended",
        "done",
        "exit $code",
    ]
    return "\n".join(lines)


def _remote_commands(job: Job) -> Iterator[tuple[str, str]]:
    """Yield each host and its shell command."""
    assert job.hosts is not None
    forwarded = {
        name: value
        for name, value in sorted(os.environ.items())
        if name.startswith(FORWARDED) and re.fullmatch(r"\w+", name, re.ASCII)
    }
    for rank, name in enumerate(job.hosts.names):
        devices = job.hosts.devices(rank)
        visible = {} if devices is None else {"CUDA_VISIBLE_DEVICES": devices}
        variables = [f"{key}={value}" for key, value in {**forwarded, **visible}.items()]
        own, first = address(name), address(job.hosts.names[0])
        flags = ["--nnodes", job.node_range, "--node-rank", str(rank), "--local-addr", own]
        flags += ["--rdzv-endpoint", job.endpoint or f"{first}:{PORT}"]
        command = ["exec", "env", *variables, *_words(job, flags if job.nodes > 1 else [])]
        yield name, f"cd -- {writers.shell([str(Path.cwd())])} && {writers.shell(command)}"


def _words(job: Job, flags: Sequence[str]) -> list[str]:
    """Return the command that starts a node. With -P, Python imports nothing of the folder."""
    at = job.command.index("--")
    words = [*job.command[:at], *flags, *job.command[at:]]
    return [sys.executable, "-P", "-m", "dsconfig", *words]
