"""``dsconfig explain FILE`` for files that are empty, broken, of another kind, or name a config."""

import json
from pathlib import Path

import pytest

import command_line

CONFIG = '{"train_batch_size": 8, "zero_optimization": {"stage": 2}}'
ACCELERATE = """\
distributed_type: DEEPSPEED
mixed_precision: bf16
num_processes: 8
deepspeed_config:
  zero_stage: 3
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "empty file"),
        ("\n\n", "empty file"),
        ("{}", "the file sets no keys"),
        ("[]", "expected an object, found a list"),
        ('{"output_dir": "x", "num_train_epochs": 3}', "is a file of TrainingArguments"),
        ('{"model_type": "x", "hidden_size": 1, "vocab_size": 1}', "is a model config"),
        ('{"a": 1, "b": 2}', "none of its keys resembles a ds_config key"),
    ],
)
@pytest.mark.parametrize("form", ["full", "json"])
def test_file_without_keys_is_an_error(text: str, expected: str, form: str, tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text(text)
    done = command_line.run("explain", "ds.json", "--output-format", form, cwd=tmp_path)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("dsconfig: error: ds.json") and expected in done.stderr


def test_syntax_error_is_reported_below_the_keys(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text('{"train_batch_size": 8,, "fp16": 1}')
    done = command_line.run("explain", "ds.json", cwd=tmp_path)
    assert done.returncode == 1 and "train_batch_size = 8" in done.stdout
    assert "ds.json:1: expected a key" in done.stderr and "keys may be missing" in done.stderr


@pytest.mark.parametrize(
    ("name", "text", "program"),
    [
        ("acc.yaml", ACCELERATE, "accelerate"),
        ("train.yaml", "model: x\ndeepspeed: ds.json\n", "transformers"),
        ("args.json", '{"output_dir": "x", "deepspeed": "ds.json"}', "transformers"),
        ("args.json", '{"deepspeed": "./ds.json", "run_name": "x"}', "transformers"),
    ],
)
def test_config_of_another_file_is_explained(
    name: str, text: str, program: str, tmp_path: Path
) -> None:
    (tmp_path / "ds.json").write_text(CONFIG)
    (tmp_path / name).write_text(text)
    done = command_line.run("explain", name, cwd=tmp_path)
    assert done.returncode == 0 and "zero_optimization.stage = " in done.stdout
    assert f"target: {program}" in done.stderr
    data = command_line.run("explain", name, "--output-format", "json", cwd=tmp_path)
    assert all(key["doc"] for key in json.loads(data.stdout)["keys"])
