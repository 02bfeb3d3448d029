"""Where DeepSpeed's kernels are built for the tests."""

import os
import subprocess
import sys
import time
from pathlib import Path

_LONGEST_BUILD = 1800.0
"""Seconds."""


def built_here() -> Path:
    """Return a folder of this checkout in which no lock of a dead build lies.

    torch waits without end for the lock of a build that was cut off, in whatever run that was.
    """
    folder = Path(__file__).parents[1] / "runs" / "extensions"
    for lock in folder.glob("*/lock"):
        if time.time() - lock.stat().st_mtime > _LONGEST_BUILD:
            lock.unlink(missing_ok=True)
    return folder


def build_adams() -> Path:
    """Have DeepSpeed build those of Adam, on the device and offloaded: minutes on a CPU.

    Done in a test that would be cut off with the test: others then wait for its lock, and fail too.
    Returns the folder, for TORCH_EXTENSIONS_DIR; what is there is not built again.
    """
    folder = built_here()
    program = (
        "from deepspeed.accelerator import get_accelerator as device\n"
        "for name in ('FusedAdamBuilder', 'CPUAdamBuilder'): "
        "device().create_op_builder(name).load()"
    )
    path = os.pathsep.join([os.environ["PATH"], str(Path(sys.executable).parent)])  # to ninja
    more = {"TORCH_EXTENSIONS_DIR": str(folder), "DS_ACCELERATOR": "cpu", "PATH": path}
    command = [sys.executable, "-c", program]
    subprocess.run(command, env=os.environ | more, check=True, capture_output=True)
    return folder
