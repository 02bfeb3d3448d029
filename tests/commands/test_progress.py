"""Long operations show progress on a terminal, and only there."""

import os
import pty
import subprocess
import sys
from contextlib import nullcontext

import pytest
from typer.testing import CliRunner

from dsconfig.commands.app import app

SCRIPT = """
import threading
from dsconfig.commands.progress import progress
with progress("Searching configurations", delay=0.0):
    threading.Event().wait(0.5)
print("done")
"""


def test_progress_is_shown_on_a_terminal() -> None:
    shown = _stderr_on_terminal(SCRIPT)
    assert "Searching configurations" in shown


def test_nothing_is_shown_before_the_delay() -> None:
    assert _stderr_on_terminal(SCRIPT.replace("delay=0.0", "delay=600.0")) == ""


def test_nothing_is_shown_without_a_terminal() -> None:
    run = [sys.executable, "-c", SCRIPT]
    result = subprocess.run(run, capture_output=True, text=True, check=True, timeout=60)
    assert (result.stdout, result.stderr) == ("done\n", "")


FACTS = ("--model", "gpt2", "--gpus", "2", "--device", "h100", "--seq-len", "128")


@pytest.mark.parametrize(
    ("arguments", "module", "task"),
    [
        (("tune", *FACTS), "tune", "Searching configurations"),
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


def _stderr_on_terminal(script: str) -> str:
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.DEVNULL, stderr=follower
    )
    os.close(follower)
    shown = b""
    try:
        while block := os.read(leader, 4096):
            shown += block
    except OSError:  # Linux reports the closed terminal as an error.
        pass
    os.close(leader)
    assert process.wait(60) == 0
    return shown.decode()
