"""Environment variables and process helpers shared by ``dsconfig run`` and its ranks."""

import os
from collections.abc import MutableMapping
from pathlib import Path

PLAN = "DSCONFIG_PLAN"
"""Path of the plan that every rank executes."""
CONFIG = "DSCONFIG_FILE"
"""Path of the resolved config, for scripts that pass one themselves."""
EVENTS = "DSCONFIG_EVENTS"
"""Path of the file to which ranks write steps, checkpoints and failures."""
ELASTIC = "DSCONFIG_ELASTIC"
"""Set if the plan may be executed by another number of ranks with the same global batch."""
THREADS = "OMP_NUM_THREADS"
DEFAULT_THREADS = "DSCONFIG_DEFAULT_THREADS"
"""Set if the user has not set ``OMP_NUM_THREADS``, so that ranks may use more threads."""

REFUSED = 2
"""Exit code if nodes cannot train together; shared by launcher and command."""


def mark_default_threads(environment: MutableMapping[str, str]) -> None:
    """Mark in a launcher's environment that its ranks may choose their number of threads.

    torchrun gives several ranks of a host one thread each, too few to update an offloaded
    optimizer.
    """
    if THREADS not in environment:
        environment[DEFAULT_THREADS] = "1"


def child_processes() -> list[int]:
    """Return the PIDs of running child processes, as listed in ``/proc``."""
    return [pid for pid, parent in parents().items() if parent == os.getpid()]


def parents() -> dict[int, int]:
    """Return the parent of each running process by PID, as listed in ``/proc``."""
    found: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            _, _, rest = stat.read_text("utf-8", "replace").rpartition(")")
        except OSError:  # the process has exited
            continue
        state, parent = rest.split()[:2]
        if state != "Z":
            found[int(stat.parent.name)] = int(parent)
    return found
