"""Usage errors, exit codes in help pages, and flags that commands share."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import command_line
from dsconfig.commands.app import COMMANDS
from sweeps import sweep


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            "convert ds.json --to x",
            "--to: 'x' is not one of json, base64, accelerate",
        ),
        ("run ds.json --engine x -- a.py", "--engine: 'x' is not one of dsengine, deepspeed"),
        ("checkpoint x out", "ACTION: 'x' is not one of verify, convert"),
        ("estimate --runtime x", "--runtime: 'x' is not one of dsengine, deepspeed, transformers"),
        ("estimate --lora-rank 0", "--lora-rank: must be at least 1"),
        ("estimate --gpus x", "--gpus: expected an integer"),
    ],
)
def test_invalid_values_are_reported_in_one_style(arguments: str, message: str) -> None:
    done = command_line.run(*arguments.split())
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith(f"dsconfig: error: {message}")


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_states_the_exit_codes(command: str) -> None:
    help = " ".join(command_line.run(*command.split(), "--help", columns=80).stdout.split())
    assert "2 for a usage error or unreadable input." in help
    assert "xit code" in help


def test_help_of_dsengine_fits_80_columns() -> None:
    command = [sys.executable, "-m", "dsengine", "--help"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    lines = [line for line in text.splitlines() if line.strip() != sys.executable]
    assert max(map(len, lines)) <= 80
    assert "exit code" in text


@sweep(
    2,
    precision=["fp32", "fp16", "bf16"],
    size=["", "--params 1e9 --gpus 2 --device h100"],
    program=["deepspeed", "transformers", ""],
)
def test_starter_has_the_specified_precision(
    precision: str, size: str, program: str, tmp_path: Path
) -> None:
    runtime = ("--runtime", program) if program else ()
    flags = (*size.split(), *runtime, "--precision", precision, "-o", "ds.json")
    done = command_line.run("init", *flags, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    resolved = ("resolve", "ds.json", *runtime, "--gpus", "2", "--precision", precision)
    if program == "transformers":
        assert f"{precision}=True" in done.stderr or precision == "fp32"
        return
    out = command_line.run(*resolved, "-o", "-", cwd=tmp_path)
    config = json.loads(out.stdout)
    enabled = [name for name in ("fp16", "bf16") if config.get(name, {}).get("enabled") is True]
    assert enabled == [name for name in ("fp16", "bf16") if name == precision], done.stderr


def test_diff_names_the_target_program_in_json(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"train_batch_size": 8}')
    (tmp_path / "b.json").write_text('{"train_batch_size": 16}')
    done = command_line.run("diff", "a.json", "b.json", "--output-format", "json", cwd=tmp_path)
    data = json.loads(done.stdout)
    assert (data["runtime"], data["release"]) == ("deepspeed", "0.19.8")
