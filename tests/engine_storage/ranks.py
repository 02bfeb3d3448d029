"""Runs a worker script on several ranks: real processes, gloo, one thread each."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from ports import reserved_port

WORKERS = Path(__file__).parent / "workers"
ROOT = Path(__file__).parents[2]


def start_ranks(worker: str, world_size: int, out: Path, **options: Any) -> list[subprocess.Popen]:
    """Start ``workers/{worker}.py`` once per rank; each gets its options as JSON."""
    out.mkdir(parents=True, exist_ok=True)
    environment = os.environ | {
        "WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(reserved_port()),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(
            [os.environ.get("PYTHONPATH", ""), str(ROOT / "engine"), str(ROOT), str(ROOT / "tests")]
        ).lstrip(os.pathsep),
    }
    arguments = json.dumps(options | {"out": str(out)})
    processes = []
    for rank in range(world_size):
        with (out / f"rank{rank}.log").open("w") as log:
            processes.append(
                subprocess.Popen(
                    [sys.executable, str(WORKERS / f"{worker}.py"), arguments],
                    env=environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
            )
    return processes


def run_ranks(
    worker: str, world_size: int, out: Path, timeout: float = 120, **options: Any
) -> list[Any]:
    """Run to the end and return each rank's result (``rank{r}.json``); fail with the logs."""
    processes = start_ranks(worker, world_size, out, **options)
    try:
        codes = [process.wait(timeout) for process in processes]
    finally:
        for process in processes:
            process.kill()
    logs = "\n".join((out / f"rank{r}.log").read_text()[-4000:] for r in range(world_size))
    assert codes == [0] * world_size, f"exit codes {codes}\n{logs}"
    return [json.loads((out / f"rank{r}.json").read_text()) for r in range(world_size)]
