"""The fields of TrainingArguments, compared with the installed transformers."""

import dataclasses
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import yaml

import dsconfig
from dsconfig.facts.trainer_fields import FORMER, TAKEN

CONFIG = {"train_batch_size": 8, "zero_optimization": {"stage": 2}}


@pytest.mark.live
@pytest.mark.filterwarnings("ignore")
def test_fields_match_installed_transformers() -> None:
    from transformers import TrainingArguments

    assert {field.name for field in dataclasses.fields(TrainingArguments)} == TAKEN


def test_former_fields_are_not_current() -> None:
    assert TAKEN.isdisjoint(FORMER)


@pytest.mark.parametrize(
    ("written", "advised"),
    [
        ("1e-4", "1.0e-4"),
        ("1.5e4", "1.5e+4"),
        ("1.0e-4", None),
        (".5e3", "0.5e+3"),
        ("1_0e-8", "10.0e-8"),
    ],
)
def test_number_that_yaml_reads_as_string_is_reported_with_line(
    written: str, advised: str | None, tmp_path: Path
) -> None:
    path = tmp_path / "args.yaml"
    path.write_text(f"output_dir: out\nlearning_rate: {written}\n")
    facts = dsconfig.gather(gpus=1, training_args=path)
    found = dsconfig.validate(CONFIG, facts, runtime="transformers").diagnostics
    findings = [each for each in found if each.code == "DSC707"]
    assert [each.help for each in findings] == ([f"write {advised}"] if advised else [])
    assert all(each.message.startswith(f"{path}:2: learning_rate") for each in findings)
    if advised:
        assert yaml.safe_load(advised) == float(written)


@pytest.mark.parametrize("line", ["output_dir: 1e5", "run_name: 1e-4", "num_train_epochs: 1e1"])
def test_unused_string_number_has_no_finding(line: str, tmp_path: Path) -> None:
    path = tmp_path / "args.yaml"
    path.write_text(f"{line}\n")
    facts = dsconfig.gather(gpus=1, training_args=path)
    found = dsconfig.validate(CONFIG, facts, runtime="transformers").diagnostics
    assert "DSC707" not in {each.code for each in found}


def test_argument_line_in_json_with_tabs(tmp_path: Path) -> None:
    path = tmp_path / "args.json"
    path.write_text('{\n\t"output_dir": "out",\n\t"warmup_ratio": 0.1\n}\n')
    facts = dsconfig.gather(gpus=1, training_args=path)
    found = dsconfig.validate(CONFIG, facts, runtime="transformers").errors
    assert [each.message.split(": ")[0] for each in found] == [f"{path}:3"]


def test_arguments_from_a_pipe_are_read_once(tmp_path: Path) -> None:
    path = tmp_path / "args.yaml"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_text, args=("warmup_ratio: 0.1\n",), daemon=True)
    writer.start()
    code = (
        "import sys, dsconfig; facts = dsconfig.gather(gpus=1, training_args=sys.argv[1]);"
        f"print(dsconfig.validate({CONFIG}, facts, runtime='transformers').errors[0].message)"
    )
    command = [sys.executable, "-c", code, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.startswith(f"{path}: warmup_ratio")


def test_argument_finding_has_its_line(tmp_path: Path) -> None:
    path = tmp_path / "args.yaml"
    path.write_text("output_dir: out\nevaluation_strategy: 'no'\n")
    facts = dsconfig.gather(gpus=1, training_args=path)
    (findings,) = dsconfig.validate(CONFIG, facts, runtime="transformers").errors
    assert findings.message.startswith(f"{path}:2: evaluation_strategy") and findings.range is None


def test_unknown_arguments_are_one_note() -> None:
    given = {"output_dir": "out", "learning_rat": 1e-5, "dataset": "d", "max_rows": 3, "lora": 1}
    facts = dsconfig.gather(gpus=1, training_args=given)
    found = dsconfig.validate(CONFIG, facts, runtime="transformers").diagnostics
    (findings,) = [each for each in found if each.code == "DSC707"]
    assert findings.severity == "info" and "and 1 more" in findings.message


def test_script_fields_are_known_arguments() -> None:
    given = {"output_dir": "out", "max_length": 512, "model_init_kwargs": {"dtype": "bfloat16"}}
    facts = dsconfig.gather(gpus=1, training_args=given)
    found = dsconfig.validate(CONFIG, facts, runtime="transformers").diagnostics
    assert "DSC707" not in {each.code for each in found}
