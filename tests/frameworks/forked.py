"""Run several scripts, each in a process forked from one that has imported common modules.

python -m frameworks.real forked.py JOBS, or python -m dsengine.as_deepspeed forked.py JOBS: JOBS is
a JSON file with ``script``, ``arguments``, ``environment`` and ``log`` of each. A failing script
does not affect the others.
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
from typing import Any

from ports import reserved_port

COMMON = ("torch", "torch.distributed.fsdp", "accelerate", "transformers", "deepspeed")
SECONDS = 240.0


def run(job: dict[str, Any]) -> None:
    if (process := os.fork()) == 0:
        _script(job)
    started = time.monotonic()
    while os.waitpid(process, os.WNOHANG)[0] == 0:
        if time.monotonic() - started > SECONDS:
            os.killpg(process, signal.SIGKILL)
        time.sleep(0.02)
    with suppress(ProcessLookupError):
        os.killpg(process, signal.SIGKILL)


def _script(job: dict[str, Any]) -> None:
    """Run the script and exit the process."""
    os.setsid()
    status = 1
    log = os.open(job["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    try:
        os.environ.update(job["environment"], MASTER_PORT=str(reserved_port()))
        sys.argv = [job["script"], *job["arguments"]]
        runpy.run_path(job["script"], run_name="__main__")
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
