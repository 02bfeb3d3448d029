"""Python files with long or deep expressions."""

import pytest

import dsconfig
from dsconfig.source.from_python import document_from_python

CONFIG = "ds_config = {{'train_batch_size': {}, 'zero_optimization': {{'stage': 2}}}}\n"


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("*".join(["1"] * 2500), 1),
        ("+".join(["1"] * 2500), 2500),
        ("-".join(["1"] * 2500), -2498),
        ("**".join(["1"] * 90), 1),
        ("-" * 90 + "1", 1),
        ("(" * 90 + "1" + ")" * 90, 1),
        ("2*(" * 60 + "1" + ")" * 60, 2**60),
        ("7//2*" * 800 + "0", 0),
    ],
    ids=lambda value: value[:12] if isinstance(value, str) else "",
)
def test_long_arithmetic_is_evaluated(expression: str, value: int) -> None:
    document = document_from_python(CONFIG.format(expression), "train.py")
    assert document.value["train_batch_size"] == value and not document.diagnostics


@pytest.mark.parametrize(
    "expression",
    [
        "*".join(["1"] * 50_000),
        "+".join(["a"] * 50_000),
        "-" * 50_000 + "1",
        "not " * 20_000 + "1",
        "**".join(["2"] * 20_000),
        "(" * 20_000 + ")" * 20_000,
        "f(" * 20_000 + ")" * 20_000,
        "lambda: " * 20_000 + "1",
        "1 if 1 else " * 20_000 + "1",
        "a" + ".b" * 50_000,
        "a" + "[0]" * 50_000,
        "[" * 150 + "]" * 150,
        "{1: " * 150 + "1" + "}" * 150,
        "'a' * 10**9",
        "1 / 0",
        "None - 1",
        "-'a'",
        "10**128**128**128",
        "1e308 * 1e308",
        "float('nan')",
        "float('9' * 5000)",
    ],
    ids=lambda text: text[:12],
)
def test_hostile_expression_gives_a_report(expression: str) -> None:
    document = document_from_python(CONFIG.format(expression), "train.py")
    report = dsconfig.validate(document)
    assert report.diagnostics and not dsconfig.resolve(document).ok
    assert all(len(found.message) < 2000 for found in report.diagnostics)


def test_cyclic_constants_are_not_followed() -> None:
    text = "a = b\nb = a\nc = c + c\n" + CONFIG.format("a + c")
    assert document_from_python(text, "train.py").placeholders == {"/train_batch_size"}
