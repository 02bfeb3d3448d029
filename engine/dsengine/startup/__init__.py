"""The environment in which every Python process imports dsengine as ``deepspeed``.

PYTHONPATH contains a folder with a ``sitecustomize`` module, which Python imports before any
program; PATH contains a folder with the program ``deepspeed``. Both folders are part of this
package, so nothing is written to disk, and the replacement ends with the processes that have this
environment.
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

DEEPSPEED = "deepspeed"
"""The package that dsengine replaces."""
HOOK_FOLDER = str(Path(__file__).parent / "path")
"""The folder on PYTHONPATH."""
PROGRAM_FOLDER = str(Path(__file__).parent / "bin")
"""The folder on PATH."""
MODE = "DSENGINE"
"""Environment variable; with the value REQUIRED another deepspeed ends its process."""
REQUIRED = "required"
PYTHON = "DSENGINE_PYTHON"
"""Environment variable: the Python that runs the program ``deepspeed``."""


def child_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return a copy of an environment with the replacement."""
    return {
        **environment,
        "PYTHONPATH": _with_first(HOOK_FOLDER, environment.get("PYTHONPATH", "")),
        "PATH": _with_first(PROGRAM_FOLDER, environment.get("PATH", os.defpath)),
        PYTHON: sys.executable,
    }


def reach_children() -> None:
    """Replace DeepSpeed in all processes that this one starts from now on."""
    os.environ.update(child_environment(os.environ))


def has_hook(environment: Mapping[str, str]) -> bool:
    """Return whether Python processes with this environment import the hook."""
    return HOOK_FOLDER in environment.get("PYTHONPATH", "").split(os.pathsep)


def is_replaced() -> bool:
    """Return whether this process has imported ``deepspeed``, as an alias of dsengine."""
    return DEEPSPEED in sys.modules and sys.modules[DEEPSPEED] is sys.modules.get("dsengine")


def is_required() -> bool:
    """Return whether another deepspeed must end its process.

    Raises ValueError for an unknown value of DSENGINE.
    """
    value = os.environ.get(MODE, "")
    if value not in ("", REQUIRED):
        raise ValueError(f"{MODE} is {value!r}: set it to {REQUIRED!r}, or unset it")
    return value == REQUIRED


def _with_first(folder: str, paths: str) -> str:
    others = [path for path in paths.split(os.pathsep) if path != folder]
    return os.pathsep.join([folder, *others] if paths else [folder])
