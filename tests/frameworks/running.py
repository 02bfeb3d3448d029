"""Running scripts in their own processes, with dsengine or the real DeepSpeed."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ports import reserved_port

SCRIPTS = Path(__file__).parent / "scripts"
ROOT = Path(__file__).parents[2]
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


def run(package: str, script: str, *arguments: str, ranks: int = 1) -> str:
    """Run a script with a package as its ``deepspeed`` and return its output.

    Raises RuntimeError with the end of the output if it fails.
    """
    launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    program = ["-m", STAND_IN[package], str(SCRIPTS / f"{script}.py"), *arguments]
    command = [sys.executable, *(launch if ranks > 1 else []), *program]
    done = subprocess.run(command, env=environment(ranks), capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{(done.stdout + done.stderr)[-4000:]}")
    return done.stdout + done.stderr


def result_of(package: str, script: str, folder: Path, *arguments: str, ranks: int = 1) -> Any:
    """Run a script that writes its result to the file given as its first argument."""
    target = folder / f"{package}.json"
    run(package, script, str(target), *arguments, ranks=ranks)
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

    Jobs with a result are not run again; a failing one only leaves the log.
    """
    listed = [
        {
            "script": str(SCRIPTS / f"{job.script}.py"),
            "arguments": [str(folder / f"{name}.json"), *job.arguments],
            "ranks": job.ranks,
            "environment": dict(job.environment),
            "log": str(folder / f"{name}.log"),
        }
        for name, job in jobs.items()
        if not (folder / f"{name}.json").exists()
    ]
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "jobs"
    file.write_text(json.dumps(listed))
    forked = Path(__file__).parent / "forked.py"
    command = [sys.executable, "-m", STAND_IN[package], str(forked), str(file)]
    subprocess.run(command, env=environment(1), check=True, capture_output=True)
