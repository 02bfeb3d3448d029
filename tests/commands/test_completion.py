"""Shell completion: its scripts and the completed words."""

from pathlib import Path

import pytest

import command_line
from dsconfig.commands.app import COMMANDS
from dsconfig.report.render import FORMATS

NAMED_SHELL = "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION"
"""Makes Typer use the specified shell instead of detecting it."""


def run(*arguments: str, **variables: str) -> str:
    done = command_line.run(*arguments, environment=variables)
    assert done.returncode == 0, done.stderr
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


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("estimate --model qw", "qwen3-8b"),
        ("estimate --device h", "h100-sxm5-80gb"),
        ("validate --runtime t", "transformers"),
        ("validate --output-format s", "sarif"),
        ("tune --output-format j", "json"),
        ("explain overl", "overlap_comm"),
        ("explain zero_optimization.st", "zero_optimization.stage"),
        ("explain DSC40", "DSC404"),
    ],
)
def test_values_are_completed(typed: str, expected: str) -> None:
    words = completed(f"dsconfig {typed}")
    assert expected in words
    assert all(word.lower().startswith(typed.split()[-1].lower()) for word in words)


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_fits_80_columns(command: str) -> None:
    text = run(*command.split(), "--help", COLUMNS="80")
    assert max(map(len, text.splitlines())) <= 80


def test_validate_help_lists_the_output_formats() -> None:
    text = " ".join(run("validate", "--help", COLUMNS="80").split())
    assert ", ".join(FORMATS) in text
