"""A process exits after gloo's threads, which need the interpreter to free tensors."""

import ctypes
import hashlib
import math
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from dsengine.communication import gloo_exit
from dsengine.communication.gloo_exit import wait_for_gloo
from dsengine.torch_private.groups import GLOO_THREAD

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(sys.platform != "linux", reason="thread names are read on Linux only"),
]

PR_SET_NAME = 15


def test_exit_waits_for_running_gloo_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gloo_exit, "TIMEOUT_SECONDS", math.inf)
    begun, finished = threading.Event(), threading.Event()

    def work() -> None:
        ctypes.CDLL(None).prctl(PR_SET_NAME, GLOO_THREAD.encode(), 0, 0, 0)
        begun.set()
        hashlib.sha256(bytes(200_000_000)).digest()  # without the GIL, as gloo works
        finished.set()

    thread = threading.Thread(target=work)
    thread.start()
    begun.wait()
    wait_for_gloo()
    assert finished.is_set()
    thread.join()


def test_exit_does_not_wait_for_idle_gloo_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()

    def wait() -> None:
        ctypes.CDLL(None).prctl(PR_SET_NAME, GLOO_THREAD.encode(), 0, 0, 0)
        released.wait()

    monkeypatch.setattr(gloo_exit, "TIMEOUT_SECONDS", math.inf)
    thread = threading.Thread(target=wait)
    thread.start()
    wait_for_gloo()
    assert thread.is_alive()
    released.set()
    thread.join()


STARTS = """
import ctypes, hashlib, threading
import torch, torch.distributed as dist, dsengine
from dsengine.communication import gloo_exit
gloo_exit.TIMEOUT_SECONDS = 600.0
{start}

def work():
    ctypes.CDLL(None).prctl(15, b"{name}", 0, 0, 0)
    begun.set()
    hashlib.sha256(bytes(200_000_000)).digest()
    print("finished", flush=True)

begun = threading.Event()
threading.Thread(target=work, daemon=True).start()
begun.wait()
"""


@pytest.mark.parametrize(
    "start",
    [
        "dsengine.init_distributed()",
        "dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1)\n"
        "dsengine.initialize(model=torch.nn.Linear(2, 2), config={'train_batch_size': 1})",
    ],
    ids=["our_group", "the_scripts_group"],
)
def test_process_waits_for_gloo_at_exit(start: str) -> None:
    code = STARTS.format(start=start, name=GLOO_THREAD)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "finished\n"), done.stderr


@pytest.mark.long
def test_deepspeed_script_waits_for_gloo_at_exit(tmp_path: Path) -> None:
    (tmp_path / "deepspeed.py").write_text("def initialize(): ...\n")
    script = tmp_path / "train.py"
    script.write_text(STARTS.format(start="", name=GLOO_THREAD))
    done = subprocess.run(
        [sys.executable, "-m", "dsengine.with_deepspeed", str(script)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (0, "finished\n"), done.stderr
