"""Each command infers the same target program, and applies --set to each kind of file."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dsconfig.commands.app import app

TRAINER = {
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 3},
}
PLAIN = {"train_batch_size": 8, "zero_optimization": {"stage": 2}}
ACCELERATE = """distributed_type: DEEPSPEED
mixed_precision: bf16
num_processes: 4
deepspeed_config:
  zero_stage: 3
"""
MODEL = ("--model", "gpt2", "--device", "h100", "--seq-len", "128")
FACTS = (*MODEL, "--gpus", "4")
TARGETS = {"transformers": 'inferred from "auto"', "accelerate": "inferred from the accelerate"}


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, [*map(str, arguments)], terminal_width=300)


@pytest.fixture
def trainer(tmp_path: Path) -> Path:
    path = tmp_path / "z3.json"
    path.write_text(json.dumps(TRAINER))
    return path


@pytest.fixture
def accelerate(tmp_path: Path) -> Path:
    path = tmp_path / "accelerate.yaml"
    path.write_text(ACCELERATE)
    return path


@pytest.mark.parametrize("file", ["trainer", "accelerate"])
@pytest.mark.parametrize(
    "command",
    [
        ("validate",),
        ("resolve", *FACTS, "--micro-batch", 1, "--precision", "bf16"),
        ("estimate", *FACTS, "--micro-batch", 1, "--precision", "bf16"),
        ("doctor",),
        ("diff", "--from-version", "0.14.4"),
    ],
    ids=lambda command: command[0],
)
def test_commands_infer_the_same_program(
    command: tuple[object, ...], file: str, request: pytest.FixtureRequest
) -> None:
    name, *flags = command
    done = run(name, request.getfixturevalue(file), *flags)
    program = {"trainer": "transformers"}.get(file, file)
    shown = " ".join(done.output.split())
    assert f"{program} {'5.23' if file == 'trainer' else '1.15'} + DeepSpeed" in shown, shown
    assert TARGETS[program] in shown and "override with --runtime" in shown


def test_json_of_resolve_names_the_inferred_program(trainer: Path) -> None:
    done = run("resolve", trainer, "--gpus", 4, "--output-format", "json")
    data = json.loads(done.stdout)
    assert (data["runtime"], data["inferred_from"]) == ("transformers", '"auto"')
    assert data["config"]["train_batch_size"] == 32, "8 per device, as in the Trainer"


def test_plan_targets_dsengine_and_prints_reason(trainer: Path, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    shown = run("plan", trainer, *FACTS, "--micro-batch", 1).stdout
    assert "target: dsengine (plans are executed by dsengine; override with --runtime)" in shown
    assert "override" not in run("plan", trainer, *FACTS, "--runtime", "dsengine").stdout
    run("plan", trainer, *FACTS, "--micro-batch", 1, "-o", plan)
    assert "target: dsengine\n" in run("plan", plan).stdout


@pytest.mark.parametrize("command", ["estimate", "resolve"])
def test_set_applies_to_a_config_generated_by_accelerate(command: str, accelerate: Path) -> None:
    flags = (*MODEL, "--micro-batch", 1, "--runtime", "accelerate", "--output-format", "json")
    for overrides, stage in (((), 3), (("--set", "zero_optimization.stage=2"), 2)):
        data = json.loads(run(command, accelerate, *flags, *overrides).stdout)
        if command == "resolve":
            assert data["config"]["zero_optimization"]["stage"] == stage
        else:
            assert data["options"][0]["stage"] == stage


def test_set_adds_keys_without_an_accelerate_setting(accelerate: Path) -> None:
    flags = (*MODEL, "--micro-batch", 1, "--set", "zero_optimization.reduce_bucket_size=1000")
    data = json.loads(run("resolve", accelerate, *flags, "--output-format", "json").stdout)
    assert (
        data["config"]["zero_optimization"] | {"reduce_bucket_size": 1000, "stage": 3}
        == (data["config"]["zero_optimization"])
    )


def test_nothing_to_resolve_is_not_printed_above_errors(tmp_path: Path) -> None:
    path = tmp_path / "ds.json"
    path.write_text(json.dumps(PLAIN))
    assert "Nothing" not in run("resolve", path, "--gpus", 3).stdout
    path.write_text(
        json.dumps(PLAIN | {"zero_optimization": {"stage": 2, "sub_group_size": "auto"}})
    )
    failed = run("resolve", path, "--gpus", 4, "--runtime", "deepspeed")
    assert failed.exit_code == 1 and "error[" in failed.stdout
    assert "Nothing" not in failed.stdout
