"""Values, positions and error recovery of the parser."""

import pytest

from dsconfig.report import Position
from dsconfig.source import Document, read
from dsconfig.source.from_text import document_from_text
from dsconfig.source.hjson import MAX_DEPTH, read_hjson
from mutants import texts


def at(document: Document, pointer: str, *, key: bool = False) -> tuple[int, int, int, int]:
    place = document.range(pointer, key=key)
    assert place is not None
    return (place.start.line, place.start.column, place.end.line, place.end.column)


def codes(document: Document) -> list[str]:
    return [found.code for found in document.diagnostics]


def errors(text: str) -> list[tuple[int, int]]:
    """Line and column of each syntax error."""
    found = document_from_text(text, "a.json").diagnostics
    places = [each.range.start for each in found if each.code == "DSC002" and each.range]
    return [(place.line, place.column) for place in places]


def test_positions_of_keys_and_values() -> None:
    document = read('{\n  "a": [1, {"b/c": "x"}],\n  d: 5e8 // five\n}')
    assert at(document, "/a", key=True) == (2, 3, 2, 6)
    assert at(document, "/a") == (2, 8, 2, 25)
    assert at(document, "/a/0") == (2, 9, 2, 10)
    assert at(document, "/a/1/b~1c") == (2, 20, 2, 23)
    assert at(document, "/d") == (3, 6, 3, 9)
    assert at(document, "") == (1, 1, 4, 2)


def test_columns_count_code_points_and_all_line_ends() -> None:
    document = read('{"ключ": "\U0001f600", "b":\t1,\r\n"c": 2,\r"d": 3\n}', name="a.json")
    assert at(document, "/b") == (1, 20, 1, 21)
    assert at(document, "/c") == (2, 6, 2, 7)
    assert at(document, "/d") == (3, 6, 3, 7)


def test_missing_entry_uses_enclosing_position() -> None:
    document = read('{"zero_optimization": {"stage": 3}}')
    assert at(document, "/zero_optimization/reduce_bucket_size") == (1, 2, 1, 21)
    assert at(document, "/fp16/enabled") == (1, 1, 1, 36)


def test_text_at_each_position_parses_to_value() -> None:
    for text in texts():
        document = read(text, name="corpus.json")
        lines = text.split("\n")
        for pointer, span in document.spans.items():
            if span.key is not None and span.key.start.line == span.key.end.line:
                line = lines[span.key.start.line - 1]
                raw = line[span.key.start.column - 1 : span.key.end.column - 1]
                assert raw.strip("\"'") == pointer.rpartition("/")[2].replace("~1", "/")


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ('{"a": 1,, "b": 2}', [(1, 9)]),
        ('{\n"a" 1,\n"b" = 2,\n"c": ,\n"d": 4\n}', [(2, 4), (3, 5), (4, 6)]),
        ('{\n"a": "open,\n"b": 2\n}', [(2, 6)]),
        ('{\n"a": "\\q",\n"b": "\\u12",\n"c": 3\n}', [(2, 7), (3, 7)]),
        ('{\n"a": [1, 2},\n"b": 2\n}', [(2, 11)]),
        ('{\n"a": {"x": 1],\n"b": 2\n}', [(2, 13)]),
        ('{\n"a": 1\n}\n}', [(4, 1)]),
        ('{\nmy key: 1\nb: 2\n}', [(2, 1)]),
        ('{\n"a": 1\nb\nc: 3\n}', [(3, 1)]),
        ('{\n: 1,\n"b": 2\n}', [(2, 1)]),
        ('{\n"a":: 1,\n"b": 2\n}', [(2, 5)]),
        ('{\n{"x": 1},\n"b": 2\n}', [(2, 1)]),
        ('{\n"a": 1e999\n}', [(2, 6)]),
        ('{"a": 1 /* never closed', [(1, 9)]),
        ('{\n"a": 1,\n"b": [1', [(3, 8)]),
        ('{\n"a": "\x01"\n}', [(2, 7)]),
        ("a: '''x", [(1, 4)]),
        ("a: 1\nb:", [(2, 1)]),
        ('"a"', []),
    ],
)  # fmt: skip
def test_errors_have_positions_and_parsing_continues(
    text: str, places: list[tuple[int, int]]
) -> None:
    assert errors(text) == places


def test_positions_after_error_are_correct() -> None:
    document = read('{\n"a": 1,,\n"b" = 2,\n"c": {"d": 3}\n}')
    assert document.is_broken
    assert document.value == {"a": 1, "b": 2, "c": {"d": 3}}
    assert at(document, "/c/d") == (4, 12, 4, 13)


def test_unclosed_container_is_named() -> None:
    document = read('{\n"train_batch_size": 2,\n"zero_optimization": {\n  "stage": 2')
    (found,) = document.diagnostics
    assert found.pointer == ""
    assert '"zero_optimization", opened on line 3' in found.message


def test_unquoted_string_hiding_brace_is_reported() -> None:
    (found,) = read('{"train_batch_size": 2, "gradient_clipping": NaN}').diagnostics
    assert found.pointer == "/gradient_clipping"
    assert found.range and found.range.start == Position(1, 46)


def test_errors_are_limited_to_one_per_line_and_twenty() -> None:
    assert len(errors('{"a": 1,,,,,,,}')) == 1
    assert len(errors("{\n" + "@\n" * 100 + "}")) == 20


def test_duplicate_key_is_reported_and_last_value_wins() -> None:
    document = read('{"z": {"stage": 1, "x": 1}, "z": {"stage": 3, "stage": 2}}')
    assert codes(document) == ["DSC003", "DSC003"]
    assert document.value == {"z": {"stage": 2}}
    assert at(document, "/z") == (1, 34, 1, 58)
    assert "/z/x" not in document.spans


@pytest.mark.parametrize("opener", ["[", '{"a":', "{a:", "[{"])
def test_excessive_nesting_is_reported(opener: str) -> None:
    document = read("{x: " + opener * 10_000)
    assert codes(document) == ["DSC001"]
    assert document.is_unreadable and document.value == {}


def test_moderate_nesting_is_parsed() -> None:
    depth = MAX_DEPTH - 1
    assert read_hjson("[" * depth + "]" * depth).problems == []


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("{}", None),
        ('{"a": 1, // note\n"b": 2}', "a comment"),
        ('{"a": 1,}', "a trailing comma"),
        ('{"a": [1,]}', "a trailing comma"),
        ("{a: 1}", "a key without double quotes"),
        ("{'a': 1}", "a key without double quotes"),
        ("{\"a\": 'x'}", "single quotes"),
        ('{"a": x\n}', "an unquoted string"),
        ('{"a": 1\n"b": 2}', "a missing comma"),
        ("\ufeff{}", "a byte order mark"),
        ("", "an empty text"),
        ('{"a": 1} x', "extra data"),
    ],
)
def test_json_error_names_the_construct(text: str, what: str | None) -> None:
    json_error = read(text, format="hjson").json_error
    assert (json_error.message if json_error else None) == what


def test_unquoted_string_to_end_of_line_is_reported() -> None:
    document = read('{\n"enabled": True,\n"dtype": fp32 # half\n"x": 1\n}')
    assert codes(document) == ["DSC006", "DSC006"]
    assert document.diagnostics[0].fix is not None
    assert document.diagnostics[1].fix is None


@pytest.mark.parametrize("value", ['b"enabled": true,', "a b,", "x:y,", "[1,2],"])
def test_only_plain_word_gets_quote_fix(value: str) -> None:
    (found,) = read(f'{{\n"a": fp32 {value}\n}}').diagnostics
    assert (found.code, found.fix) == ("DSC006", None)


def test_nan_is_reported() -> None:
    document = read('{\n"a": NaN\n"b": -Infinity\n}')
    assert codes(document) == ["DSC007", "DSC007"]
    assert document.value == {"a": "NaN", "b": "-Infinity"}
