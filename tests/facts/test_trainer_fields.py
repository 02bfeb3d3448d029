"""The fields of TrainingArguments beside the transformers installed."""

import dataclasses
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
    ("written", "advised"), [("1e-4", "1.0e-4"), ("1.5e4", "1.5e+4"), ("1.0e-4", None)]
)
def test_a_number_that_is_a_text_to_yaml_is_told_at_its_line(
    written: str, advised: str | None, tmp_path: Path
) -> None:
    path = tmp_path / "args.yaml"
    path.write_text(f"output_dir: out\nlearning_rate: {written}\n")
    facts = dsconfig.gather(world_size=1, training_args=path)
    found = dsconfig.validate(CONFIG, facts, runtime="transformers").diagnostics
    told = [each for each in found if each.code == "DSC707"]
    assert [each.help for each in told] == ([f"write {advised}"] if advised else [])
    assert all(each.message.startswith(f"{path}:2: learning_rate") for each in told)
    if advised:
        assert yaml.safe_load(advised) == float(written)


def test_a_name_is_told_at_its_line_of_the_arguments(tmp_path: Path) -> None:
    path = tmp_path / "args.yaml"
    path.write_text("output_dir: out\nevaluation_strategy: 'no'\n")
    facts = dsconfig.gather(world_size=1, training_args=path)
    (told,) = dsconfig.validate(CONFIG, facts, runtime="transformers").errors
    assert told.message.startswith(f"{path}:2: evaluation_strategy") and told.range is None
