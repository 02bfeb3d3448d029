"""Running scripts in their own processes, with dsengine or the real DeepSpeed."""

import atexit
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from frameworks.forked import ENDED, READY
from ports import reserved_port
from suite.limits import scaled
from suite.machine import machine_for_ranks
from waiting import lines_until

SCRIPTS = Path(__file__).parent / "scripts"
ROOT = Path(__file__).parents[2]
SECONDS = 200.0
"""Limit of a script on an idle machine, less than that of a test."""
LOADING = 120.0
"""Limit of importing a package."""
GRACE = 10.0
"""Seconds to end."""
STAND_IN = {"dsengine": "dsengine.as_deepspeed", "deepspeed": "frameworks.real"}


def environment(ranks: int) -> dict[str, str]:
    """Return the environment of a single rank, or of the launcher of several."""
    paths = [ROOT, ROOT / "engine", ROOT / "tests", *filter(None, [os.environ.get("PYTHONPATH")])]
    single = {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(reserved_port()),
    }
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "PYTHONWARNINGS": "ignore",
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "DS_ACCELERATOR": "cpu",
        **(single if ranks == 1 else {}),
    }


def result_of(
    package: str,
    script: str,
    folder: Path,
    *arguments: str,
    ranks: int = 1,
    environment: Mapping[str, str] | None = None,
) -> Any:
    """Run a script that writes its result to the file given as its first argument.

    Raises RuntimeError with the end of its log if it fails.
    """
    target, log = folder / package / f"{script}.json", folder / package / f"{script}.log"
    target.unlink(missing_ok=True)
    job = Job(script, arguments, environment or {}, ranks)
    run_jobs(package, target.parent, {script: job})
    if not target.exists():
        raise RuntimeError(f"{script} with {package}\n{log.read_text()[-4000:]}")
    return json.loads(target.read_text())


@dataclass(frozen=True, slots=True)
class Job:
    """A script that writes its result to the file given as its first argument."""

    script: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    ranks: int = 1


def run_jobs(package: str, folder: Path, jobs: Mapping[str, Job]) -> None:
    """Run scripts in sequence; each writes ``folder/NAME.json`` and NAME.log.

    Jobs with a result are not run again; one that fails, or does not end in time, only leaves the
    log.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, job in jobs.items():
        if not (folder / f"{name}.json").exists():
            request = {
                "script": str(SCRIPTS / f"{job.script}.py"),
                "arguments": [str(folder / f"{name}.json"), *job.arguments],
                "ranks": job.ranks,
                "environment": dict(job.environment),
                "log": str(folder / f"{name}.log"),
            }
            with machine_for_ranks() if job.ranks > 1 else nullcontext():
                _server(package).run(request)


class _Server:
    """The process from which the scripts of a package are forked. It ends with this one."""

    def __init__(self, package: str) -> None:
        self._package = package
        self._errors = TemporaryFile("w+")  # noqa: SIM115 - open as long as the process
        self._process = subprocess.Popen(
            [sys.executable, "-m", STAND_IN[package], str(Path(__file__).with_name("forked.py"))],
            env=environment(1),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        atexit.register(self._stop)
        self._wait_for(READY, LOADING)

    def run(self, request: Mapping[str, Any]) -> None:
        """Run a script; it is killed after SECONDS, and if this call is interrupted."""
        line = json.dumps({**request, "seconds": scaled(SECONDS)})
        print(line, file=self._process.stdin, flush=True)
        self._wait_for(ENDED, SECONDS + GRACE)

    def _wait_for(self, text: str, seconds: float) -> None:
        try:
            lines_until(text, self._process, self._process.stdout, seconds)
        except AssertionError as error:
            self._errors.seek(0)
            why = self._errors.read()[-4000:]
            self._stop()
            raise RuntimeError(f"the process with {self._package} ended: {error}\n{why}") from error
        except BaseException:
            self._stop()
            raise

    def _stop(self) -> None:
        """End the process; the next script starts another."""
        _server.cache_clear()
        atexit.unregister(self._stop)
        self._process.terminate()
        try:
            self._process.communicate(timeout=GRACE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
        self._errors.close()


@cache
def _server(package: str) -> _Server:
    return _Server(package)
