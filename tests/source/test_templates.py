"""Placeholders make a template, not forty type errors."""

import json

import pytest

from dsconfig.source import read
from mutants import CORPUS


def test_the_templates_of_the_corpus() -> None:
    rows = [json.loads(line) for line in (CORPUS / "verdicts.jsonl").read_text().splitlines()]
    wrong = [
        row["file"] for row in rows if read(CORPUS / row["file"]).is_template != row["template"]
    ]
    assert wrong == []


@pytest.mark.parametrize(
    "value",
    ["${STAGE}", "${zero_stage},", "{{ stage }}", "$STAGE", "<stage>", "@STAGE@", "__STAGE__",
     "%(stage)d", "$(cat stage)", "<% stage %>", "ZERO_STAGE", "GBSIZE,", "${A}_${B}"],
)  # fmt: skip
def test_placeholders_without_quotes(value: str) -> None:
    document = read(f'{{\n"stage": {value}\n"x": 1\n}}')
    assert document.placeholders == {"/stage"}
    assert document.value["x"] == 1


@pytest.mark.parametrize("value", ["${STAGE}", "{{ stage }}", "/logs/${USER}/x", "<stage>"])
def test_placeholders_in_quotes(value: str) -> None:
    assert read(json.dumps({"stage": value})).placeholders == {"/stage"}


@pytest.mark.parametrize("value", ["True", "NAN", "SGD", "fp32", "/path/x", "A", "a$b", "INFO"])
def test_what_is_no_placeholder(value: str) -> None:
    assert not read(f'{{\n"stage": {value}\n}}').is_template
    assert not read(json.dumps({"stage": value})).is_template


def test_a_word_in_capitals_behind_a_bare_key_is_a_text() -> None:
    assert not read("{\nbackend: NCCL\n}").is_template
    assert read("{\nbatch: BATCH_SIZE\n}").is_template


def test_several_placeholders_on_one_line() -> None:
    document = read('{"a": {{ x }}, "b": ${Y}, "train_batch_size": MBS, "c": [{{ z }}]}')
    assert document.placeholders == {"/a", "/b", "/train_batch_size", "/c/0"}
    assert not document.is_broken


def test_statements_of_the_template_language_are_stepped_over() -> None:
    document = read('{\n{% if z %}\n"b": 1,\n{% endif %}\n"c": {{ x }}\n}')
    assert document.value == {"b": 1, "c": "{{ x }}"}
    place = document.range("/c")
    assert place and place.start.line == 5


def test_a_broken_text_without_placeholders_stays_broken() -> None:
    document = read('{"a": NAN, "b": 1}')
    assert document.is_broken and not document.is_template
