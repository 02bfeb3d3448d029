"""A run as a job of a cluster: the file for Slurm, or the commands over ssh. Printed, not started.

Both start ``dsconfig run`` once on each node, with the Python and in the directory of now; node 0
makes the plan there and hands it over.
"""

import os
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from dsconfig.commands.errors import UsageError
from dsconfig.commands.nodes import PORT
from dsconfig.hostfile import Hosts, address

SECONDS_TO_END = 30
"""What is left to a job beside its ranks' own time when Slurm says that its time is over."""
CARRIED = ("NCCL_", "UCX_", "GLOO_", "PYTHONPATH")
"""Variables that ssh leaves behind, and that decide how ranks find each other and their code."""


class Job(NamedTuple):
    """What starts on ``nodes`` with as many ``ranks`` on each."""

    nodes: int
    ranks: int
    command: Sequence[str]
    """``run FILE [flags] -- SCRIPT [arguments]``, without what tells nodes apart."""
    notes: Sequence[str]
    """What is about to run, in words."""
    on_cards: bool
    restarts: int
    grace: int
    least: int | None = None
    """The fewest nodes that it goes on with, where they are fewer than ``nodes``."""
    hosts: Hosts | None = None
    endpoint: str | None = None

    @property
    def name(self) -> str:
        """That of the script."""
        return Path(self.command[self.command.index("--") + 1]).stem

    @property
    def span(self) -> str:
        """As ``--nnodes`` takes it."""
        return f"{self.least}:{self.nodes}" if self.least else f"{self.nodes}"


def command(file: str, flags: Mapping[str, object], program: Sequence[str]) -> list[str]:
    """The words after ``dsconfig`` that start this run again; lists are flags given repeatedly."""
    words = ["run", file]
    for name, value in flags.items():
        for each in value if isinstance(value, list) else [value]:  # pyright: ignore[reportUnknownVariableType]
            if each is not None:
                words += [f"--{name.replace('_', '-')}", str(each)]  # pyright: ignore[reportUnknownArgumentType]
    return [*words, "--", *program]


def slurm(job: Job) -> str:
    """A batch script for ``sbatch``. Raises UsageError where slots are named: Slurm gives them."""
    if job.hosts is not None and job.hosts.are_filtered:
        raise UsageError("--emit slurm: Slurm gives out the devices of a node; name hosts only")
    options = {
        "job-name": re.sub(r"[^\w.+-]", "_", job.name),  # sbatch reads no quotes
        "nodes": job.nodes,
        "ntasks-per-node": 1,
        "gpus-per-node": job.ranks if job.on_cards else None,
        "nodelist": ",".join(job.hosts.names) if job.hosts else None,
        "exclusive": "",
        "mem": 0,
        "output": "%x-%j.log",
        "signal": f"TERM@{job.grace + SECONDS_TO_END}",
        # A job that may start again outlives a node.
        "no-kill": "" if job.restarts else None,
    }
    # What Slurm does not tell: how few nodes will do, and where node 0 is if not on the first.
    ends = ["--nnodes", job.span] if job.least else []
    ends += ["--rdzv-endpoint", job.endpoint] if job.endpoint and job.nodes > 1 else []
    lines = [
        "#!/bin/bash",
        *_comments(job),
        "# Partition, account and time are the cluster's: sbatch --partition=P --time=H:M:S FILE",
        *(
            f"#SBATCH --{name}" + (f"={value}" if value != "" else "")
            for name, value in options.items()
            if value is not None
        ),
        "",
        f"cd {shlex.quote(str(Path.cwd()))} || exit 1",
        # One launcher a node, which has all of it: ranks are not bound to the first core.
        f"srun --cpu-bind=none --kill-on-bad-exit={0 if job.restarts else 1} \\",
        f"    {_shell(job, ends)}",
    ]
    return "\n".join(lines)


def ssh(job: Job) -> str:
    """A script that starts every node over ssh and ends them all when it is ended. Raises
    UsageError without hosts.
    """
    if job.hosts is None:
        raise UsageError("--emit ssh: name the nodes, --hostfile FILE")
    lines = [
        "#!/bin/bash",
        *_comments(job),
        "nodes=() code=0",
        "# A terminal of its own (-tt) tells a node when this ends, and so ends its ranks.",
        """trap 'code=143; kill "${nodes[@]}" 2>/dev/null' INT TERM HUP""",
        *(
            f"ssh -n -tt -- {shlex.quote(name)} {shlex.quote(there)} & nodes+=($!)"
            for name, there in _there(job)
        ),
        'for node in "${nodes[@]}"; do',
        '    wait "$node"; ended=$?',
        "    # A signal ends the waiting, not the node.",
        '    while kill -0 "$node" 2>/dev/null; do wait "$node"; ended=$?; done',
        "    ((ended && !code)) && code=$ended",
        "done",
        "exit $code",
    ]
    return "\n".join(lines)


def _there(job: Job) -> Iterator[tuple[str, str]]:
    """Each host, and what its shell has to do."""
    assert job.hosts is not None
    carried = {
        name: value
        for name, value in sorted(os.environ.items())
        if name.startswith(CARRIED) and name.isidentifier()
    }
    for rank, name in enumerate(job.hosts.names):
        devices = job.hosts.devices(rank)
        told = carried if devices is None else {**carried, "CUDA_VISIBLE_DEVICES": devices}
        variables = "".join(f"{key}={shlex.quote(value)} " for key, value in told.items())
        own, first = address(name), address(job.hosts.names[0])
        place = ["--nnodes", job.span, "--node-rank", str(rank), "--local-addr", own]
        place += ["--rdzv-endpoint", job.endpoint or f"{first}:{PORT}"]
        there = _shell(job, place if job.nodes > 1 else [])
        yield name, f"cd {shlex.quote(str(Path.cwd()))} && exec env {variables}{there}"


def _shell(job: Job, place: Sequence[str]) -> str:
    at = job.command.index("--")
    words = [*job.command[:at], *place, *job.command[at:]]
    return shlex.join([sys.executable, "-m", "dsconfig", *words])


def _comments(job: Job) -> list[str]:
    return [f"# {' '.join(note.split())}" for note in job.notes]
