"""Shell completion: its scripts and the completed words."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = Path(sys.executable).with_name("dsconfig")
NAMED_SHELL = "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION"
"""Makes Typer use the specified shell instead of detecting it."""


def run(*arguments: str, **variables: str) -> str:
    done = subprocess.run(
        [str(COMMAND), *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **variables},
        timeout=60,
        check=True,
    )
    return done.stdout


def completed(typed: str) -> list[str]:
    words = {"COMP_WORDS": typed, "COMP_CWORD": str(len(typed.split(" ")) - 1)}
    return run(_DSCONFIG_COMPLETE="complete_bash", **words).split()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script_is_shown_and_installed(shell: str, tmp_path: Path) -> None:
    named = {NAMED_SHELL: "1"}
    assert f"_DSCONFIG_COMPLETE=complete_{shell}" in run("--show-completion", shell, **named)
    run("--install-completion", shell, HOME=str(tmp_path), **named)
    assert any("dsconfig" in path.name for path in tmp_path.rglob("*") if path.is_file())


def test_commands_and_options_are_completed() -> None:
    assert completed("dsconfig val") == ["validate"]
    assert {"validate", "resolve", "estimate", "tune"} <= set(completed("dsconfig "))
    assert completed("dsconfig validate --output-f") == ["--output-format"]
