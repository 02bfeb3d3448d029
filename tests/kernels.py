"""Build folder and compiler of DeepSpeed's kernels for the tests."""

import os
import subprocess
import sys
import time
from pathlib import Path

COMPILER = Path(__file__).with_name("quick-c++")
"""For CXX: compiles extensions in half the time, without debug information."""
_MAX_BUILD_SECONDS = 1800.0


def extensions_folder() -> Path:
    """Return the build folder of this checkout, without stale locks.

    torch waits forever for the lock of an interrupted build.
    """
    folder = Path(__file__).parents[1] / "runs" / "extensions"
    for lock in folder.glob("*/lock"):
        if time.time() - lock.stat().st_mtime > _MAX_BUILD_SECONDS:
            lock.unlink(missing_ok=True)
    return folder


BUILDERS = ("FusedAdamBuilder", "CPUAdamBuilder", "CPUAdagradBuilder", "ShareMemCommBuilder")
"""DeepSpeed's builders of the kernels that tests use."""


def build() -> Path:
    """Build DeepSpeed's kernels for the CPU, which takes minutes.

    Not inside a test: its timeout would interrupt the build, and others would wait for the lock.
    Returns the folder, for TORCH_EXTENSIONS_DIR; existing kernels are not built again.
    """
    folder = extensions_folder()
    program = (
        "from deepspeed.accelerator import get_accelerator as device\n"
        f"for name in {BUILDERS}: device().create_op_builder(name).load()"
    )
    path = os.pathsep.join([os.environ["PATH"], str(Path(sys.executable).parent)])  # for ninja
    variables = {
        "TORCH_EXTENSIONS_DIR": str(folder),
        "CXX": os.environ.get("CXX", str(COMPILER)),
        "DS_ACCELERATOR": "cpu",
        "PATH": path,
    }
    command = [sys.executable, "-c", program]
    subprocess.run(command, env=os.environ | variables, check=True, capture_output=True)
    return folder
