"""The fields of TrainingArguments beside the transformers installed."""

import dataclasses

import pytest

from dsconfig.facts.trainer_fields import FORMER, TAKEN


@pytest.mark.live
@pytest.mark.filterwarnings("ignore")
def test_the_fields_are_those_of_the_transformers_installed() -> None:
    from transformers import TrainingArguments

    assert {field.name for field in dataclasses.fields(TrainingArguments)} == TAKEN


def test_a_former_field_is_taken_no_more() -> None:
    assert TAKEN.isdisjoint(FORMER)
