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
from dsconfig.facts.gathering import facts_of
from dsconfig.facts.request import FactsRequest
from dsconfig.facts.trainer_fields import FORMER, REMOVED, TAKEN
from dsconfig.report import Position, Range
from suite.limits import scaled

CONFIG = {"train_batch_size": 8, "zero_optimization": {"stage": 2}}


@pytest.mark.live
@pytest.mark.filterwarnings("ignore")
def test_fields_match_installed_transformers() -> None:
    from transformers import TrainingArguments

    assert {field.name for field in dataclasses.fields(TrainingArguments)} == TAKEN


def test_former_fields_are_not_current() -> None:
    assert TAKEN.isdisjoint(FORMER)


def test_removing_release_of_each_former_field_is_known() -> None:
    assert REMOVED.keys() == FORMER.keys()


@pytest.mark.parametrize(
    ("release", "is_rejected"), [("4.57.1", False), ("5.14.1", False), ("5.15.0", True)]
)
def test_removed_argument_is_rejected_from_the_release_that_removed_it(
    release: str, is_rejected: bool
) -> None:
    arguments = {"warmup_ratio": 0.1, "per_device_train_batch_size": 8}
    facts = dsconfig.gather(
        gpus=1, training_args=arguments, releases={"transformers": release}, total_steps=10
    )
    found = dsconfig.validate(CONFIG, facts, runtime="transformers").diagnostics
    messages = [each.message for each in found if each.code == "DSC707"]
    assert bool(messages) is is_rejected
    assert all(f"transformers {release} (removed in 5.15)" in each for each in messages)
    assert dsconfig.resolve(CONFIG, facts, runtime="transformers").ok is not is_rejected


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
    assert all(each.message.startswith("learning_rate") for each in findings)
    assert all(each.range and each.range.start.line == 2 for each in findings)
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
    assert [each.range and each.range.start for each in found] == [Position(3, 2)]


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
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=scaled(60))
    assert done.stdout.startswith(f"{path}: warmup_ratio")


def test_argument_finding_has_its_line(tmp_path: Path) -> None:
    path = tmp_path / "args.yaml"
    path.write_text("output_dir: out\nevaluation_strategy: 'no'\n")
    facts = dsconfig.gather(gpus=1, training_args=path)
    (findings,) = dsconfig.validate(CONFIG, facts, runtime="transformers").errors
    assert findings.message.startswith("evaluation_strategy is not a TrainingArgument of")
    assert (findings.file, findings.range) == (str(path), Range(Position(2, 1), Position(2, 20)))


def test_removed_argument_is_refused_by_resolve_as_by_validate(tmp_path: Path) -> None:
    path = tmp_path / "args.json"
    path.write_text('{\n\t"output_dir": "out",\n\t"evaluation_strategy": "no"\n}')
    facts = dsconfig.gather(gpus=1, training_args=path)
    resolution = dsconfig.resolve(CONFIG, facts, runtime="transformers")
    (rejected,) = dsconfig.validate(CONFIG, facts, runtime="transformers").errors
    (stop,) = resolution.refusals
    assert not resolution.ok and stop.code == "DSC707"
    assert (stop.message, stop.file, stop.range) == (rejected.message, str(path), rejected.range)
    assert dsconfig.resolve(CONFIG, facts, runtime="dsengine").ok


def test_ignore_comment_does_not_cover_the_same_line_of_another_file(tmp_path: Path) -> None:
    path = tmp_path / "args.yaml"
    path.write_text("output_dir: out\nevaluation_strategy: 'no'\n")
    facts = dsconfig.gather(gpus=1, training_args=path)
    text = (
        '{"zero_optimization": {"stage": 2},\n"train_batch_size": 1 // dsconfig: ignore DSC707\n}'
    )
    found = dsconfig.validate(text, facts, runtime="transformers").diagnostics
    assert "DSC707" in {each.code for each in found}


def test_unknown_arguments_are_one_note() -> None:
    given = {"output_dir": "out", "learning_rat": 1e-5, "dataset": "d", "max_rows": 3, "lora": 1}
    facts = facts_of(FactsRequest(gpus=1, training_args=given))
    found = dsconfig.validate(CONFIG, facts, runtime="transformers").diagnostics
    (findings,) = [each for each in found if each.code == "DSC707"]
    assert findings.severity == "info" and "and 1 more" in findings.message


def test_script_fields_are_known_arguments() -> None:
    given = {"output_dir": "out", "max_length": 512, "model_init_kwargs": {"dtype": "bfloat16"}}
    facts = facts_of(FactsRequest(gpus=1, training_args=given))
    found = dsconfig.validate(CONFIG, facts, runtime="transformers").diagnostics
    assert "DSC707" not in {each.code for each in found}


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("per_device_batch_size", "per_device_train_batch_size"),
        ("per_device_evl_batch_size", "per_device_eval_batch_size"),
        ("do_evall", "do_eval"),
    ],
)
def test_name_without_eval_means_the_argument_of_training(name: str, meant: str) -> None:
    facts = facts_of(FactsRequest(gpus=1, training_args={name: 2}))
    report = dsconfig.validate({"train_batch_size": 2}, facts, runtime="transformers")
    helps = [each.help for each in report.diagnostics if each.code == "DSC707"]
    assert helps == [f'did you mean "{meant}"?']
