"""The fields of TrainingArguments beside the transformers installed."""

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
def test_the_fields_are_those_of_the_transformers_installed() -> None:
    from transformers import TrainingArguments

    assert {field.name for field in dataclasses.fields(TrainingArguments)} == TAKEN


def test_a_former_field_is_taken_no_more() -> None:
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
def test_a_number_that_is_a_text_to_yaml_is_told_at_its_line(
    written: str, advised: str | None, tmp_path: Path
) -> None:
    path = tmp_path / "args.yaml"
    path.write_text(f"output_dir: out\nlearning_rate: {written}\n")
    facts = dsconfig.gather(gpus=1, training_args=path)
    found = dsconfig.validate(CONFIG, facts, runtime="transformers").diagnostics
    told = [each for each in found if each.code == "DSC707"]
    assert [each.help for each in told] == ([f"write {advised}"] if advised else [])
    assert all(each.message.startswith(f"{path}:2: learning_rate") for each in told)
    if advised:
        assert yaml.safe_load(advised) == float(written)


@pytest.mark.parametrize("line", ["output_dir: 1e5", "run_name: 1e-4", "num_train_epochs: 1e1"])
def test_a_text_that_no_optimizer_calculates_with_is_let_be(line: str, tmp_path: Path) -> None:
    path = tmp_path / "args.yaml"
    path.write_text(f"{line}\n")
    facts = dsconfig.gather(gpus=1, training_args=path)
    found = dsconfig.validate(CONFIG, facts, runtime="transformers").diagnostics
    assert "DSC707" not in {each.code for each in found}


def test_a_name_is_told_at_its_line_of_json_indented_with_tabs(tmp_path: Path) -> None:
    path = tmp_path / "args.json"
    path.write_text('{\n\t"output_dir": "out",\n\t"warmup_ratio": 0.1\n}\n')
    facts = dsconfig.gather(gpus=1, training_args=path)
    found = dsconfig.validate(CONFIG, facts, runtime="transformers").errors
    assert [each.message.split(": ")[0] for each in found] == [f"{path}:3"]


def test_a_pipe_of_arguments_is_read_once(tmp_path: Path) -> None:
    path = tmp_path / "args.yaml"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_text, args=("warmup_ratio: 0.1\n",), daemon=True)
    writer.start()
    code = (
        "import sys, dsconfig; facts = dsconfig.gather(world_size=1, training_args=sys.argv[1]);"
        f"print(dsconfig.validate({CONFIG}, facts, runtime='transformers').errors[0].message)"
    )
    command = [sys.executable, "-c", code, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.startswith(f"{path}: warmup_ratio")


def test_a_name_is_told_at_its_line_of_the_arguments(tmp_path: Path) -> None:
    path = tmp_path / "args.yaml"
    path.write_text("output_dir: out\nevaluation_strategy: 'no'\n")
    facts = dsconfig.gather(gpus=1, training_args=path)
    (told,) = dsconfig.validate(CONFIG, facts, runtime="transformers").errors
    assert told.message.startswith(f"{path}:2: evaluation_strategy") and told.range is None


def test_names_that_a_script_may_have_are_one_note() -> None:
    given = {"output_dir": "out", "learning_rat": 1e-5, "dataset": "d", "max_rows": 3, "lora": 1}
    facts = dsconfig.gather(gpus=1, training_args=given)
    found = dsconfig.validate(CONFIG, facts, runtime="transformers").diagnostics
    (told,) = [each for each in found if each.code == "DSC707"]
    assert told.severity == "info" and "and 1 more" in told.message


def test_fields_of_scripts_that_are_read_are_no_strangers() -> None:
    given = {"output_dir": "out", "max_length": 512, "model_init_kwargs": {"dtype": "bfloat16"}}
    facts = dsconfig.gather(gpus=1, training_args=given)
    found = dsconfig.validate(CONFIG, facts, runtime="transformers").diagnostics
    assert "DSC707" not in {each.code for each in found}
