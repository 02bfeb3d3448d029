"""Run several scripts, each in processes forked from one that has imported common modules.

python -m frameworks.real forked.py, or python -m dsengine.as_deepspeed forked.py: prints READY when
the modules are imported. Each line of standard input then is a JSON object with ``script``,
``arguments``, ``ranks``, ``environment``, ``log`` and ``seconds`` of one. It is killed after these
seconds; the answer is ENDED in any case. Ranks other than 0 write their result and log to files
with the suffix ``.rank1`` and so on. A failing script does not affect the others.
"""

import importlib
import json
import math
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

COMMON = (
    *("torch", "torch.distributed.fsdp", "accelerate", "transformers.trainer", "deepspeed"),
    "transformers.models.llama.modeling_llama",
)


READY, ENDED = "[forked] ready", "[forked] ended"


def run(job: dict[str, Any]) -> None:
    """Run the script on every rank; kill the others if one fails, and all after its seconds."""
    port = reserved_port()
    end, processes = time.monotonic() + job["seconds"], set[int]()
    try:
        for rank in range(job["ranks"]):
            processes.add(_start(job, rank, port))
        running = set(processes)
        while running:
            ended, status = os.waitpid(-1, os.WNOHANG)
            running.discard(ended)
            if ended and status:
                _kill(running)
            if running and time.monotonic() > end:
                end = math.inf
                _kill(running)
                with Path(job["log"]).open("a") as log:
                    log.write(f"\nTimeoutError: stopped after {job['seconds']:.0f} seconds\n")
            time.sleep(0.02)
    finally:  # also at SIGTERM
        _kill(processes)


def _kill(processes: set[int]) -> None:
    for process in processes:
        with suppress(ProcessLookupError):
            os.killpg(process, signal.SIGKILL)


def _start(job: dict[str, Any], rank: int, port: int) -> int:
    if process := os.fork():
        with suppress(PermissionError, ProcessLookupError):  # it has done so itself, or has ended
            os.setpgid(process, process)
        return process
    os.setpgid(0, 0)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
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
    status = 1
    log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
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
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    for name in COMMON:
        importlib.import_module(name)
    print(READY, flush=True)
    for line in sys.stdin:
        run(json.loads(line))
        print(ENDED, flush=True)
