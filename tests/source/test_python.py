"""Config dict literals in Python files."""

import math

import pytest

from dsconfig.source import Format
from dsconfig.source.from_python import document_from_python

SCRIPT = """
MICRO = 4
TWICE = 1
TWICE = 2
other = {"fp16": 1}
ds_config = {
    "train_batch_size": MICRO * 8,  # é
    "é": {"fp16": {"enabled": True}}, "zero_optimization": {
        "stage": 3, "reduce_bucket_size": int(5e8), "sub_group_size": 10**9,
    },
    "betas": (0.9, -0.5),
    "steps_per_print": float("inf"),
    "bf16": TWICE,
}
"""


def test_most_distinctive_dict_literal_is_used() -> None:
    document = document_from_python(SCRIPT, "train.py")
    assert document.format is Format.PYTHON
    assert document.value["train_batch_size"] == 32
    assert document.value["betas"] == [0.9, -0.5]
    assert document.value["steps_per_print"] == math.inf
    assert document.value["zero_optimization"]["sub_group_size"] == 10**9
    place = document.range("/zero_optimization", key=True)
    assert place and (place.start.line, place.start.column) == (8, 39)


def test_unevaluated_expression_is_a_placeholder() -> None:
    document = document_from_python(SCRIPT, "train.py")
    assert document.placeholders == {"/zero_optimization/reduce_bucket_size", "/bf16"}
    assert document.is_template


def test_unpacking_and_computed_keys_are_placeholders() -> None:
    text = 'c = {"fp16": {}, "bf16": {**more, KEY: 1}, "fp16": {"enabled": 1}}'
    document = document_from_python(text, "x.py")
    assert document.placeholders == {"/bf16"}
    assert [found.code for found in document.diagnostics] == ["DSC003", "DSC008"]


@pytest.mark.parametrize(
    "expression",
    ["1 / 0", "2**1000", '"a" * 3', "1 < 2", "float(x)", "-'a'", "f()", "b'x'", "N", "2 @ 3"],
)
def test_large_arithmetic_is_not_evaluated(expression: str) -> None:
    text = f'N = N\nc = {{"train_batch_size": {expression}}}'
    assert document_from_python(text, "x.py").placeholders == {"/train_batch_size"}


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("x = 1", "DSC009"),
        ("x = {", "DSC002"),
        ("x = 1\0", "DSC002"),
        ("(" * 5000, "DSC002"),
        ("x = " + "-" * 100_000 + "1", "DSC001"),
    ],
)
def test_script_without_config_reports_one_finding(text: str, code: str) -> None:
    (found,) = document_from_python(text, "x.py").diagnostics
    assert found.code in (code, "DSC001", "DSC002")
