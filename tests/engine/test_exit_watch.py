"""The end of a run reports what it waits for, and ends after a limit."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from suite.limits import scaled

pytestmark = pytest.mark.engine

RUN = """
import atexit, sys, threading
from datetime import timedelta

import torch
import dsengine
from dsengine.checkpoints import checkpointer
from dsengine.communication import exit_watch

exit_watch.default_timeout = lambda: timedelta(seconds=2)
config = {"train_batch_size": 1, "optimizer": {"type": "SGD", "params": {"lr": 0.1}}}
engine, *_ = dsengine.initialize(model=torch.nn.Linear(2, 2), config=config)

def hang(*args, **options):
    threading.Event().wait()
"""
WAITS = {
    "thread": ("threading.Thread(target=hang, name='upload').start()", "the end of the process"),
    "exit handler": ("atexit.register(hang)", "the end of the process"),
    "checkpoint": (
        "checkpointer.write = hang\n"
        "engine.checkpointer().asynchronous = True\n"
        "engine.save_checkpoint(sys.argv[1])\n"
        "engine.destroy()",
        "destroy()",
    ),
}
NAMED = {
    "thread": "thread upload at ",
    "exit handler": "threading.py",
    "checkpoint": "thread dsengine-checkpoint_0 at ",
}


@pytest.mark.long
def test_process_with_closed_outputs_ends(tmp_path: Path) -> None:
    script = RUN + WAITS["checkpoint"][0].replace(
        "engine.destroy()", "sys.stdout.close()\nsys.stderr.close()\nengine.destroy()"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, timeout=scaled(120)
    )
    assert done.returncode == 1


@pytest.mark.parametrize(
    "kind",
    ["thread", *(pytest.param(kind, marks=pytest.mark.long) for kind in WAITS if kind != "thread")],
)
def test_wait_is_reported_and_ends(kind: str, tmp_path: Path) -> None:
    script, action = WAITS[kind]
    done = subprocess.run(
        [sys.executable, "-c", RUN + script, str(tmp_path)],
        env=os.environ | {"DSENGINE_PATIENCE": "0.5"},
        capture_output=True,
        text=True,
        timeout=scaled(120),
    )
    reports = [line for line in done.stderr.splitlines() if action in line]
    assert done.returncode == 1, done.stderr
    assert len(reports) >= 2
    assert all(f"dsengine: {action} has been waiting for " in line for line in reports)
    assert all(NAMED[kind] in line for line in reports)
    assert "so the process ends" in reports[-1]


@pytest.mark.long
def test_thread_that_gets_on_is_not_ended() -> None:
    """It ends after the third report, which comes after the limit."""
    work = """
reports, write = threading.Semaphore(0), sys.stderr.write

def write_and_count(text):
    if "the end of the process has been waiting for " in text:
        reports.release()
    return write(text)

def upload():
    for _ in range(3):
        while not reports.acquire(timeout=0.01):
            pass
    print("uploaded", flush=True)

sys.stderr.write = write_and_count
threading.Thread(target=upload, name="upload").start()
"""
    done = subprocess.run(
        [sys.executable, "-c", RUN + work],
        env=os.environ | {"DSENGINE_PATIENCE": "0.5"},
        capture_output=True,
        text=True,
        timeout=scaled(120),
    )
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "uploaded"), done.stderr
    assert done.stderr.count("the end of the process has been waiting for ") >= 3
    assert "so the process ends" not in done.stderr
