"""Stopping ``dsconfig run`` leaves no processes behind."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from suite.limits import scaled
from waiting import lines_until, until

pytestmark = pytest.mark.engine
ROOT = Path(__file__).parents[2]
SCRIPT = """
import os, pathlib, signal, sys, time
folder = pathlib.Path(sys.argv[1])
if len(sys.argv) > 2:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
made = folder / f"rank{os.environ['RANK']}.part"
made.write_text(f"{os.getpid()} {os.getppid()}")
made.rename(made.with_suffix(".pid"))
time.sleep(600)
"""
SECONDS = 90.0


def is_running(process: int) -> bool:
    try:
        stat = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


class Run:
    """``dsconfig run`` of a script whose two ranks wait."""

    def __init__(self, folder: Path, *stubborn: str, grace: int = 30) -> None:
        script, config = folder / "wait.py", folder / "ds.json"
        script.write_text(SCRIPT)
        config.write_text('{"train_batch_size": 2}')
        command = [sys.executable, "-m", "dsconfig", "run", str(config), "--gpus", "2"]
        command += ["--grace", str(grace), "--", str(script), str(folder), *stubborn]
        paths = os.pathsep.join([str(ROOT), str(ROOT / "engine")])
        self.process = subprocess.Popen(
            command,
            env=os.environ | {"PYTHONPATH": paths, "CUDA_VISIBLE_DEVICES": ""},
            stderr=subprocess.PIPE,
            text=True,
        )
        until("ranks", lambda: len(list(folder.glob("*.pid"))) == 2)
        pairs = [path.read_text().split() for path in sorted(folder.glob("*.pid"))]
        self.ranks = [int(rank) for rank, _ in pairs]
        self.launcher = int(pairs[0][1])

    @property
    def everything(self) -> list[int]:
        return [self.launcher, *self.ranks]

    def is_over(self) -> bool:
        return not any(map(is_running, self.everything))


@pytest.fixture
def started() -> Iterator[list[Run]]:
    runs: list[Run] = []
    yield runs
    for run in runs:
        for process in (run.process.pid, *run.everything):
            if is_running(process):
                os.kill(process, signal.SIGKILL)


@pytest.mark.parametrize("kind", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_signal_stops_all_and_sets_exit_code(
    tmp_path: Path, started: list[Run], kind: signal.Signals
) -> None:
    run = Run(tmp_path)
    started.append(run)
    run.process.send_signal(kind)
    _, expected = run.process.communicate(timeout=scaled(SECONDS))
    assert run.process.returncode == 128 + kind
    assert f"stopped by {kind.name}" in expected and "Traceback" not in expected
    assert run.is_over()


@pytest.mark.long
def test_ranks_that_ignore_signals_are_killed(tmp_path: Path, started: list[Run]) -> None:
    run = Run(tmp_path, "stubborn", grace=1)
    started.append(run)
    run.process.send_signal(signal.SIGTERM)
    run.process.communicate(timeout=scaled(SECONDS))
    assert run.process.returncode == 128 + signal.SIGTERM
    assert run.is_over()


@pytest.mark.long
def test_second_signal_stops_immediately(tmp_path: Path, started: list[Run]) -> None:
    run = Run(tmp_path, "stubborn", grace=600)
    started.append(run)
    run.process.send_signal(signal.SIGINT)
    lines_until("SIGINT received", run.process, run.process.stderr)  # or two would arrive as one
    run.process.send_signal(signal.SIGINT)
    run.process.communicate(timeout=scaled(SECONDS))
    assert run.process.returncode == 128 + signal.SIGINT
    assert run.is_over()


@pytest.mark.parametrize("whom", ["run", "launcher"])
def test_killed_run_or_launcher_stops_ranks(tmp_path: Path, started: list[Run], whom: str) -> None:
    run = Run(tmp_path)
    started.append(run)
    os.kill(run.process.pid if whom == "run" else run.launcher, signal.SIGKILL)
    run.process.communicate(timeout=scaled(SECONDS))
    assert run.process.returncode not in (0, None)
    until("the end of all", run.is_over)


@pytest.mark.long
def test_exit_code_of_script_is_returned(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text('{"train_batch_size": 1}')
    (tmp_path / "leave.py").write_text("raise SystemExit(7)")
    command = [sys.executable, "-m", "dsconfig", "run", str(tmp_path / "ds.json")]
    paths = os.pathsep.join([str(ROOT), str(ROOT / "engine")])
    done = subprocess.run(
        [*command, "--", str(tmp_path / "leave.py")],
        env=os.environ | {"PYTHONPATH": paths, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 7
    assert "rank 0 ended with exit code 7" in done.stderr
