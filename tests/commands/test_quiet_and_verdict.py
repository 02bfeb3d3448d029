"""``-q`` in every command, colored verdicts, and the exit code of an estimate that does not fit."""

import json
from pathlib import Path

import pytest

import command_line
from command_line import Done
from dsconfig.commands.app import COMMANDS, app, build

OOM = ("estimate", "ds.json", "--model", "llama-2-7b", "--gpus", "1", "--device", "rtx-4090")
CONFIG = {
    "train_micro_batch_size_per_gpu": 1,
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 2},
    "gradient_clipping": 1.0,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "ds.json").write_text(json.dumps(CONFIG))
    return tmp_path


def call(folder: Path, *arguments: str, **variables: str) -> Done:
    return command_line.run(*arguments, cwd=folder, environment={"NO_COLOR": None, **variables})


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_quiet(name: str) -> None:
    assert app is not None
    options = {option for param in build(name).params for option in param.opts}
    assert {"-q", "--quiet"} <= options


@pytest.mark.parametrize(
    "arguments",
    [
        ("validate", "ds.json"),
        (*OOM, "--seq-len", "2048"),
        ("plan", "ds.json", "--gpus", "2", "--precision", "fp32"),
    ],
    ids=["validate", "estimate", "plan"],
)
def test_quiet_suppresses_notes(folder: Path, arguments: tuple[str, ...]) -> None:
    loud, quiet = call(folder, *arguments), call(folder, *arguments, "-q")
    assert loud.stderr and not quiet.stderr
    assert (quiet.returncode, quiet.stdout) == (loud.returncode, loud.stdout)


def test_exit_code_of_estimate_that_does_not_fit_is_explained(folder: Path) -> None:
    result = call(folder, *OOM)
    assert result.returncode == 0 and "Does not fit" in result.stdout
    assert "exit code 0 although it does not fit; use --fail-if-oom" in result.stderr
    failing = call(folder, *OOM, "--fail-if-oom")
    assert failing.returncode == 1 and "exit code" not in failing.stderr
    fitting = call(folder, *OOM[:-1], "h200", "--set", "zero_optimization.stage=3")
    assert "exit code" not in fitting.stderr
    help = " ".join(call(folder, "estimate", "--help").stdout.split())
    assert "exit code 0 means that an estimate was made" in help


@pytest.mark.parametrize(
    ("device", "verdict"),
    [("rtx-4090", "\x1b[1;31mDoes not fit"), ("b200", "\x1b[1;32mFits")],
)
def test_verdict_is_colored(folder: Path, device: str, verdict: str) -> None:
    arguments = (*OOM[:-1], device, "--seq-len", "512")
    assert verdict in call(folder, *arguments, FORCE_COLOR="1").stdout
    assert "\x1b[" not in call(folder, *arguments, NO_COLOR="1").stdout


@pytest.mark.parametrize(("more", "code"), [({}, "32"), ({"gradient_cliping": 1}, "1;31")])
def test_summary_of_validate_is_colored(folder: Path, more: dict[str, int], code: str) -> None:
    (folder / "ds.json").write_text(json.dumps(CONFIG | more))
    assert f"\x1b[{code}m1 file" in call(folder, "validate", "ds.json", FORCE_COLOR="1").stderr
