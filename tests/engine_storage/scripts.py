"""Runs scripts that start and kill their own processes."""

import os
import subprocess
import sys
from pathlib import Path

from waiting import completed

ROOT = Path(__file__).parents[2]
WORKERS = Path(__file__).parent / "workers"


def run_script(worker: str, *arguments: str, seconds: float) -> "subprocess.CompletedProcess[str]":
    """Run ``workers/{worker}.py`` with the packages and tests of this checkout.

    No process that it has started remains. Raises TimeoutExpired after the scaled ``seconds``.
    """
    own = [str(ROOT / "engine"), str(ROOT), str(ROOT / "tests")]
    path = os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), *own])
    command = [sys.executable, str(WORKERS / f"{worker}.py"), *arguments]
    variables = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    return completed(command, variables, seconds)
