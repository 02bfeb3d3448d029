"""The parser returns hjson's values and rejects what hjson rejects."""

import json
from typing import Any

import hjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsconfig.source import Format, read
from dsconfig.source.from_text import document_from_text
from dsconfig.source.hjson import read_hjson
from mutants import mutants, texts

REFUSED = object()
TOO_DEEP = object()
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)  # fmt: skip
TOKENS = st.sampled_from(
    ["{", "}", "[", "]", ",", ":", '"a"', "'b'", "a", "b c", "1", "-0.5e3", "true", "null ", "\n",
     " ", "# c\n", "// c\n", "/* c */", "/*", "'''x\n  y'''", "'''", '"\\u00e9"', '"\\x"', '"',
     "\\", "1e999", "5e8", "\ufeff", "NaN", "=", "\u00a0", "\r"]
)  # fmt: skip


def no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) != len(pairs):
        raise ValueError("duplicate key")
    return dict(pairs)


def by_hjson(text: str) -> Any:
    """What DeepSpeed gets from a file with this text."""
    try:
        return hjson.loads(text, object_pairs_hook=no_duplicates)
    except RecursionError:
        return TOO_DEEP
    except (ValueError, IndexError, OverflowError):
        return REFUSED


def by_us(text: str) -> Any:
    reading = read_hjson(text)
    if reading.too_deep:
        return TOO_DEEP
    return REFUSED if reading.problems or reading.duplicates else reading.value


def same(one: Any, other: Any) -> bool:
    """Equal in value and in type, NaN and the order of keys included."""
    if TOO_DEEP in (one, other):
        return True
    return one is other or (repr(one) == repr(other) and type(one) is type(other))


def test_corpus_files_equal_hjson() -> None:
    assert [text for text in texts() if not same(by_us(text), by_hjson(text))] == []


@pytest.mark.parametrize("count", [1000, pytest.param(30_000, marks=pytest.mark.deep)])
def test_corpus_mutants_equal_hjson(count: int) -> None:
    assert [text for text in mutants(count, seed=1) if not same(by_us(text), by_hjson(text))] == []


TEXTS = {
    "tokens": st.builds("".join, st.lists(TOKENS, max_size=10)),
    "tokens in braces": st.builds(
        "{{{}}}".format, st.builds("".join, st.lists(TOKENS, max_size=10))
    ),
    "any text": st.text(),
    "json": st.builds(json.dumps, JSON_VALUES, indent=st.sampled_from([None, 2, "\t"])),
    "output of hjson": st.builds(hjson.dumps, st.dictionaries(st.text(), JSON_VALUES)),
}


@pytest.mark.parametrize(
    ("examples", "name"),
    [
        (400, "tokens"),
        (400, "tokens in braces"),
        (400, "any text"),
        (150, "json"),
        (50, "output of hjson"),
        *(pytest.param(2000, name, marks=pytest.mark.deep) for name in TEXTS),
    ],
)
def test_arbitrary_text_equals_hjson(examples: int, name: str) -> None:
    @settings(max_examples=examples)
    @given(TEXTS[name])
    def check(text: str) -> None:
        assert same(by_us(text), by_hjson(text))

    check()


@settings(max_examples=300)
@given(st.lists(TOKENS, max_size=8))
def test_json_error_equals_json_module(tokens: list[str]) -> None:
    text = "{" + "".join(tokens) + "}"
    try:
        json.loads(text)
        strict = True
    except ValueError:
        strict = False
    assert (document_from_text(text, "text").format is Format.JSON) is strict


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": 5e8}', 500000000),
        ('{"a": 2.0}', 2),
        ('{"a": 1e10}', 1e10),
        ('{"a": -0.0}', 0),
        ('{"a": 0.55}', 0.55),
        ("{\na: True\n}", "True"),
        ("{\na: 0x10\n}", "0x10"),
        ("{\na: 500_000_000\n}", "500_000_000"),
        ("a: fp32, b: 1", "fp32, b: 1"),
        ("{\na:\n  '''\n  one\n    two\n  '''\n}", "one\n  two"),
    ],
)
def test_numbers_and_strings(text: str, value: object) -> None:
    found = read(text).value["a"] if text.startswith("{") else read_hjson(text).value["a"]
    assert (found, type(found)) == (value, type(value))
