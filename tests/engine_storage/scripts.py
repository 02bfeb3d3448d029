"""Runs scripts that start and kill their own processes."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
WORKERS = Path(__file__).parent / "workers"


def run_script(worker: str, *arguments: str, seconds: float) -> "subprocess.CompletedProcess[str]":
    """Run ``workers/{worker}.py`` with the packages and tests of this checkout."""
    own = [str(ROOT / "engine"), str(ROOT), str(ROOT / "tests")]
    path = os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), *own])
    return subprocess.run(
        [sys.executable, str(WORKERS / f"{worker}.py"), *arguments],
        env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=seconds,
    )
