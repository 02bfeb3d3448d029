"""Run several scripts, each in processes forked from one that has imported common modules.

python -m frameworks.real forked.py JOBS, or python -m dsengine.as_deepspeed forked.py JOBS: JOBS is
a JSON file with ``script``, ``arguments``, ``ranks``, ``environment`` and ``log`` of each. Ranks
other than 0 write their result and log to files with the suffix ``.rank1`` and so on. A failing
script does not affect the others.
"""

import importlib
import json
import os
import runpy
import signal
import sys
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from frameworks.on_gloo import use_gloo
from ports import reserved_port

COMMON = ("torch", "torch.distributed.fsdp", "accelerate", "transformers", "deepspeed")
SECONDS = 240.0


def run(job: dict[str, Any]) -> None:
    """Run the script on every rank; kill the others if one fails, and all after SECONDS."""
    port = reserved_port()
    running = {_start(job, rank, port) for rank in range(job["ranks"])}
    started, processes = time.monotonic(), set(running)
    while running:
        ended, status = os.waitpid(-1, os.WNOHANG)
        running.discard(ended)
        if (ended and status) or time.monotonic() - started > SECONDS:
            _kill(running)
        time.sleep(0.02)
    _kill(processes)


def _kill(processes: set[int]) -> None:
    for process in processes:
        with suppress(ProcessLookupError):
            os.killpg(process, signal.SIGKILL)


def _start(job: dict[str, Any], rank: int, port: int) -> int:
    if process := os.fork():
        return process
    suffix = f".rank{rank}" if rank else ""
    target, *arguments = job["arguments"]
    group = {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(job["ranks"]),
        "LOCAL_WORLD_SIZE": str(job["ranks"]),
        "MASTER_PORT": str(port),
    }
    if job["ranks"] > 1:
        group["ACCELERATE_USE_DEEPSPEED"] = "true"  # as the launchers of accelerate do
        use_gloo()
    os.environ.update(job["environment"] | group)
    _script(job["script"], [target + suffix, *arguments], job["log"] + suffix)


def _script(script: str, arguments: list[str], log_path: str) -> NoReturn:
    """Run the script and exit the process."""
    os.setsid()
    status = 1
    log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    try:
        sys.argv = [script, *arguments]
        runpy.run_path(script, run_name="__main__")
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    for name in COMMON:
        importlib.import_module(name)
    for job in json.loads(Path(sys.argv[1]).read_text()):
        run(job)
