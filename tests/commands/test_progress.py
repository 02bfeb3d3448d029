"""Long operations show progress on a terminal, and only there."""

import os
import pty
import subprocess
import sys
from contextlib import nullcontext, suppress
from threading import Timer

import pytest
from typer.testing import CliRunner

from dsconfig.commands.app import app
from suite.limits import scaled

TASK = "Searching configurations"
SCRIPT = """
import sys
from dsconfig.commands.progress import progress
with progress("Searching configurations", delay=0.0):
    sys.stdin.read()
print("done")
"""


def test_progress_is_shown_on_a_terminal() -> None:
    assert TASK in _stderr_on_terminal(SCRIPT, until=TASK)


def test_nothing_is_shown_before_the_delay() -> None:
    assert _stderr_on_terminal(SCRIPT.replace("delay=0.0", "delay=600.0")) == ""


def test_nothing_is_shown_without_a_terminal() -> None:
    run = [sys.executable, "-c", SCRIPT]
    result = subprocess.run(
        run, capture_output=True, text=True, check=True, input="", timeout=scaled(60)
    )
    assert (result.stdout, result.stderr) == ("done\n", "")


FACTS = ("--model", "gpt2", "--gpus", "2", "--device", "h100", "--seq-len", "128")


@pytest.mark.parametrize(
    ("arguments", "module", "task"),
    [
        (("tune", *FACTS), "tune", TASK),
        (("estimate", "--fit", *FACTS), "estimate_limits", "Searching for limits"),
    ],
    ids=["tune", "fit"],
)
def test_long_command_names_its_task(
    arguments: tuple[str, ...], module: str, task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[str] = []
    replacement = lambda task: nullcontext(shown.append(task))  # noqa: E731
    monkeypatch.setattr(f"dsconfig.commands.{module}.progress", replacement)
    assert CliRunner().invoke(app, arguments).exit_code == 0
    assert shown == [task]


def _stderr_on_terminal(script: str, until: str = "") -> str:
    """Return what a script shows whose standard input ends after the text ``until``."""
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=follower,
    )
    os.close(follower)
    limit = Timer(scaled(60), process.kill)
    limit.start()
    shown = b""
    with process, suppress(OSError):  # Linux reports the closed terminal as an error
        assert process.stdin is not None
        while True:
            if until.encode() in shown:
                process.stdin.close()
            block = os.read(leader, 4096)
            if not block:
                break
            shown += block
    os.close(leader)
    limit.cancel()
    assert process.returncode == 0
    return shown.decode()
