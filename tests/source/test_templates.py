"""Placeholders are recognized as templates instead of type errors."""

import json

import pytest

from dsconfig.source import read
from mutants import CORPUS


def test_corpus_templates_are_recognized() -> None:
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
def test_unquoted_placeholders(value: str) -> None:
    document = read(f'{{\n"stage": {value}\n"x": 1\n}}')
    assert document.placeholders == {"/stage"}
    assert document.value["x"] == 1


@pytest.mark.parametrize("value", ["${STAGE}", "{{ stage }}", "/logs/${USER}/x", "<stage>"])
def test_quoted_placeholders(value: str) -> None:
    assert read(json.dumps({"stage": value})).placeholders == {"/stage"}


@pytest.mark.parametrize("value", ["True", "NAN", "SGD", "fp32", "/path/x", "A", "a$b", "INFO"])
def test_ordinary_strings_are_not_placeholders(value: str) -> None:
    assert not read(f'{{\n"stage": {value}\n}}').is_template
    assert not read(json.dumps({"stage": value})).is_template


def test_uppercase_word_after_unquoted_key_is_a_string() -> None:
    assert not read("{\nbackend: NCCL\n}").is_template
    assert read("{\nbatch: BATCH_SIZE\n}").is_template


def test_several_placeholders_on_one_line() -> None:
    document = read('{"a": {{ x }}, "b": ${Y}, "train_batch_size": MBS, "c": [{{ z }}]}')
    assert document.placeholders == {"/a", "/b", "/train_batch_size", "/c/0"}
    assert not document.is_broken


def test_template_statements_are_skipped() -> None:
    document = read('{\n{% if z %}\n"b": 1,\n{% endif %}\n"c": {{ x }}\n}')
    assert document.value == {"b": 1, "c": "{{ x }}"}
    place = document.range("/c")
    assert place and place.start.line == 5


def test_syntax_errors_without_placeholders_remain() -> None:
    document = read('{"a": NAN, "b": 1}')
    assert document.is_broken and not document.is_template
