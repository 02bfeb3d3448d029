"""The launcher's signals reach the main thread of a rank."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.engine
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="tgkill(2) is Linux's")
BLOCKED = """
import signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
print("ready", flush=True)
sys.stdin.read()
"""
CLOSE = """
import sys
from types import SimpleNamespace
from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler
from dsengine.stop_signals import address_main_threads
import signal
address_main_threads()
handler = SubprocessHandler.__new__(SubprocessHandler)
handler.proc, handler._stdout, handler._stderr = SimpleNamespace(pid=int(sys.argv[1])), None, None
handler.close(signal.SIGINT)
"""


@LINUX
def test_signal_is_addressed_to_main_thread() -> None:
    rank = subprocess.Popen(
        [sys.executable, "-c", BLOCKED],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    with rank:
        assert rank.stdout is not None and rank.stdout.readline() == b"ready\n"
        subprocess.run([sys.executable, "-c", CLOSE, str(rank.pid)], check=True)
        status = Path(f"/proc/{rank.pid}/status").read_text()
        rank.kill()
    lines = dict(line.split(":", 1) for line in status.splitlines())
    assert int(lines["SigPnd"], 16) == 1 << (signal.SIGINT - 1)
    assert int(lines["ShdPnd"], 16) & 1 << (signal.SIGINT - 1) == 0
