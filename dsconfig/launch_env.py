"""What ``dsconfig run`` and its ranks share: variables of the environment, and who lives."""

import os
from pathlib import Path

PLAN = "DSCONFIG_PLAN"
"""Names the plan that every rank executes."""
CONFIG = "DSCONFIG_FILE"
"""Names the resolved config, for scripts that pass one themselves."""
EVENTS = "DSCONFIG_EVENTS"
"""Names the file in which ranks tell of steps, checkpoints and failures."""
ELASTIC = "DSCONFIG_ELASTIC"
"""Set where the plan may be executed by another number of ranks, with the same global batch."""

REFUSED = 2
"""The exit code where nodes cannot train together: launcher and command agree on it."""


def child_processes() -> list[int]:
    """Processes whose parent is this one and that have not ended, where ``/proc`` tells them."""
    found: list[int] = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            _, _, rest = stat.read_text("utf-8", "replace").rpartition(")")
        except OSError:  # it has just ended
            continue
        state, parent = rest.split()[:2]
        if int(parent) == os.getpid() and state != "Z":
            found.append(int(stat.parent.name))
    return found
