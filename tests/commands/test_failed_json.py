"""A command that fails prints JSON if asked for it, and a format that it lacks is no error."""

import json
from pathlib import Path

import pytest

import command_line

AUTO = '{"train_batch_size": "auto", "zero_optimization": {"stage": 2}}'
BROKEN = '{"train_batch_size": 8'
VARIABLE = "DSCONFIG_OUTPUT_FORMAT"


@pytest.mark.parametrize(
    ("command", "text", "code"),
    [
        (("plan", "ds.json"), AUTO, "DSC150"),
        (("plan", "ds.json"), BROKEN, "DSC002"),
        (("estimate", "ds.json", "--gpus", 1, "--model", "gpt2"), BROKEN, "DSC002"),
    ],
)
def test_errors_without_a_result_are_json(
    tmp_path: Path, command: tuple[object, ...], text: str, code: str
) -> None:
    (tmp_path / "ds.json").write_text(text)
    result = command_line.run(*command, "--output-format", "json", cwd=tmp_path)
    data = json.loads(result.stdout)
    assert result.returncode == 1
    assert [found["code"] for found in data["diagnostics"]] == [code]
    assert data.keys() == {"format_version", "runtime", "release", "inferred_from", "diagnostics"}


def test_failed_plan_names_its_target(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text(AUTO)
    assert command_line.run("plan", "ds.json", cwd=tmp_path).stdout.startswith("target: dsengine")
    help = " ".join(command_line.run("plan", "--help").stdout.split())
    assert "(default: dsengine)" in help


def test_assumptions_are_part_of_the_json(tmp_path: Path) -> None:
    text = '{"bf16": {"enabled": "auto"}, "zero_optimization": {"stage": 2}}'
    (tmp_path / "ds.json").write_text(text)
    flags = ("--runtime", "transformers", "--gpus", 1, "--model", "gpt2", "--output-format=json")
    data = json.loads(command_line.run("estimate", "ds.json", *flags, cwd=tmp_path).stdout)
    assert any("bf16=True" in assumed for assumed in data["inputs"]["assumed"])


@pytest.mark.parametrize("form", ["github", "sarif"])
def test_variable_may_name_a_format_of_validate(form: str) -> None:
    result = command_line.run("models", "llama", environment={VARIABLE: form})
    assert result.returncode == 0 and "llama" in result.stdout


def test_variable_is_named_if_it_is_wrong() -> None:
    result = command_line.run("models", environment={VARIABLE: "xml"})
    assert result.returncode == 2 and f"{VARIABLE}: 'xml' is not one of full" in result.stderr
    result = command_line.run("models", "--output-format", "github")
    assert result.returncode == 2 and "--output-format: 'github'" in result.stderr


def test_doctor_ignores_json_of_the_variable(tmp_path: Path) -> None:
    result = command_line.run("doctor", environment={VARIABLE: "json"})
    assert "requires --log" not in result.stderr and "require --log" not in result.stderr
    assert "python" in result.stdout
    missing = command_line.run("doctor", "missing.json", cwd=tmp_path)
    assert (missing.returncode, missing.stdout) == (2, "")


def test_unreadable_file_has_no_inferred_program(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text('Use {"bf16": {"enabled": "auto"} here')
    assert "to fill in" not in command_line.run("validate", "ds.json", cwd=tmp_path).stderr


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            ("--gpus", 8, "--pipeline-parallel", 2),
            "set zero_optimization.stage to 1",
        ),
        (("--gpus", 8, "--set", "zero_optimization.mics_shard_size=3"), "does not divide"),
        ((), "the batch is not determined: specify --gpus"),
    ],
)
def test_config_without_a_plan_is_json(
    tmp_path: Path, words: tuple[object, ...], expected: str
) -> None:
    text = '{"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}}'
    (tmp_path / "ds.json").write_text(text)
    command = ("plan", "ds.json", "--model", "gpt2", *words)
    result = command_line.run(*command, "--output-format", "json", cwd=tmp_path)
    data = json.loads(result.stdout)
    assert result.returncode == 1 and data["diagnostics"] == []
    assert data["error"].startswith("ds.json: ") and expected in data["error"]
    shown = command_line.run(*command, cwd=tmp_path)
    assert expected in shown.stderr and shown.returncode == 1
