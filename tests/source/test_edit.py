"""Edits keep comments, order and layout."""

import json
import random

import pytest

from dsconfig.report import Edit, Position, Range
from dsconfig.source import Document, read
from dsconfig.source.edit import (
    apply_edits,
    apply_fixes,
    as_fix,
    delete_entry,
    insert_entry,
    move_entry,
    rename_key,
    replace_value,
)
from dsconfig.source.from_text import document_from_text
from dsconfig.source.pointer import lookup, split
from mutants import texts

COMMENTED = """{
  // the batch
  "a": 1, // one
  "b": 5e8, /* two */
  "c": {
    "d": [1, 2], # inner
    "e": "x"
  } // three
}
"""


def parsed(text: str) -> Document:
    document = document_from_text(text, "a.json")
    assert not document.is_broken, text
    return document


def renamed(text: str, pointer: str, name: str) -> str:
    return apply_edits(text, rename_key(parsed(text), pointer, name))


def deleted(text: str, pointer: str) -> str:
    return apply_edits(text, delete_entry(parsed(text), pointer))


def inserted(text: str, parent: str, key: str, value: object) -> str:
    return apply_edits(text, insert_entry(parsed(text), parent, key, value))


def moved(text: str, pointer: str, parent: str) -> str:
    return apply_edits(text, move_entry(parsed(text), pointer, parent))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"a": 1}', '{"z": 1}'),
        ("{'a': 1}", "{'z': 1}"),
        ("{a: 1}", "{z: 1}"),
        ('{\n  "a" : 1 // note\n}', '{\n  "z" : 1 // note\n}'),
    ],
)
def test_rename_key_keeps_quote_style(text: str, expected: str) -> None:
    assert renamed(text, "/a", "z") == expected


def test_rename_key_adds_required_quotes() -> None:
    assert renamed("{a: 1}", "/a", "b c") == '{"b c": 1}'


def test_replace_value() -> None:
    edits = replace_value(parsed(COMMENTED), "/b", {"x": True})
    text = apply_edits(COMMENTED, edits)
    assert '  "b": {\n    "x": true\n  }, /* two */\n' in text
    assert apply_edits('{"b": 1}', replace_value(parsed('{"b": 1}'), "/b", [1])) == '{"b": [1]}'


@pytest.mark.parametrize(
    ("pointer", "gone"),
    [
        ("/a", '  "a": 1, // one\n'),
        ("/b", '  "b": 5e8, /* two */\n'),
        ("/c/d", '    "d": [1, 2], # inner\n'),
    ],
)
def test_delete_entry_removes_its_line(pointer: str, gone: str) -> None:
    assert deleted(COMMENTED, pointer) == COMMENTED.replace(gone, "")


def test_delete_last_entry_removes_preceding_comma() -> None:
    assert deleted(COMMENTED, "/c/e") == COMMENTED.replace("[1, 2], #", "[1, 2] #").replace(
        '    "e": "x"\n', ""
    )
    assert deleted('{"a": 1, "b": 2}', "/b") == '{"a": 1}'
    assert deleted('{"a": [1, 2, 3]}', "/a/1") == '{"a": [1, 3]}'
    assert deleted('{"a": 1}', "/a") == "{}"
    assert deleted("a: 1\nb: x", "/b") == "a: 1\n"
    assert deleted('{"a": 1, "b": 2\n}', "/b") == '{"a": 1\n}'


def test_insert_entry_appends() -> None:
    text = inserted(COMMENTED, "", "new", True)
    assert text == COMMENTED.replace("} // three\n", '}, // three\n  "new": true\n')
    assert inserted('{"a": 1}', "", "b", 2) == '{"a": 1, "b": 2}'
    assert inserted("{}", "", "b", 2) == '{"b": 2}'
    assert inserted('{\n  "a": {\n  }\n}', "/a", "b", 2) == '{\n  "a": {\n    "b": 2\n  }\n}'
    assert inserted('{\n"a": 1,\n}', "", "b", 2) == '{\n"a": 1,\n"b": 2,\n}'
    assert inserted("a: some text\n", "", "b", 2) == 'a: some text\n"b": 2\n'
    assert inserted('{\r\n "a": 1\r\n}', "", "b", 2) == '{\r\n "a": 1,\r\n "b": 2\r\n}'


def test_move_entry_keeps_value_text() -> None:
    assert moved('{"z": {"s": 1}, "b": 5e8}', "/b", "/z") == '{"z": {"s": 1, "b": 5e8}}'
    assert moved('{"b": 5e8, "x": 1}', "/b", "/z") == '{"z": {"b": 5e8}, "x": 1}'
    assert moved('{"o": {"b": {"x": 1}}, "x": 1}', "/o/b", "/z") == (
        '{"o": {}, "x": 1, "z": {"b": {"x": 1}}}'
    )
    assert moved("{\nb: text\nz: {}\n}", "/b", "/z") == '{\nz: {"b": "text"}\n}'


def test_move_entry_keeps_comments_and_reindents() -> None:
    text = (
        '{\n  "o": { // why\n    "device": "cpu" # here\n  }, // kept\n  "z": {\n    "s": 1\n  }\n}'
    )
    assert moved(text, "/o", "/z") == (
        '{\n   // kept\n  "z": {\n    "s": 1,\n'
        '    "o": { // why\n      "device": "cpu" # here\n    }\n  }\n}'
    )
    assert moved(text, "/o", "/new") == (
        '{\n  "new": {\n    "o": { // why\n      "device": "cpu" # here\n    }\n  }, // kept\n'
        '  "z": {\n    "s": 1\n  }\n}'
    )


def test_uneditable_documents_return_no_edits() -> None:
    for document in (read({"a": 1}), parsed('{"a": 1}')):
        missing = "/a" if document.text is None else "/b"
        assert rename_key(document, missing, "b") == ()
        assert replace_value(document, missing, 1) == ()
        assert delete_entry(document, missing) == ()
        assert insert_entry(document, missing, "b", 1) == ()
        assert move_entry(document, missing, "/z") == ()
    assert insert_entry(parsed('{"a": 1}'), "/a", "b", 1) == ()
    assert delete_entry(parsed('{"a": 1}'), "") == ()
    assert rename_key(parsed('{"a": [1]}'), "/a/0", "b") == ()


def test_overlapping_fixes_are_skipped() -> None:
    document = parsed('{"a": 1, "b": 2}')
    fixes = [as_fix(delete_entry(document, "/a")), as_fix(rename_key(document, "/a", "z"))]
    kept = [fix for fix in fixes if fix]
    assert apply_fixes(document.text or "", [*kept, kept[0]]) == ('{"b": 2}', 1)
    assert as_fix(()) is None
    with pytest.raises(ValueError, match="overlap"):
        apply_edits("abc", [edit for fix in kept for edit in fix.edits])


def test_edits_beyond_end_of_text_are_clamped() -> None:
    far = Position(99, 99)
    assert apply_edits("ab", [Edit(Range(far, far), "c")]) == "abc"


def test_all_edits_of_corpus_files() -> None:
    source = random.Random(4)
    for text in texts():
        document = document_from_text(text, "corpus.json")
        if document.is_broken or any(found.code == "DSC003" for found in document.diagnostics):
            continue
        pointers = [pointer for pointer in document.spans if pointer]
        for pointer in source.sample(pointers, min(4, len(pointers))):
            _check_delete(document, pointer)
            _check_insert(document, pointer.rpartition("/")[0])


def _check_delete(document: Document, pointer: str) -> None:
    after = parsed(apply_edits(document.text or "", delete_entry(document, pointer)))
    expected = json.loads(json.dumps(document.value))
    last = split(pointer)[-1]
    holder = lookup(expected, pointer.rpartition("/")[0])
    del holder[int(last) if isinstance(holder, list) else last]
    assert after.value == expected


def _check_insert(document: Document, parent: str) -> None:
    if not isinstance(lookup(document.value, parent), dict):
        return
    edits = insert_entry(document, parent, "brand_new", {"x": 1})
    after = parsed(apply_edits(document.text or "", edits))
    expected = json.loads(json.dumps(document.value))
    lookup(expected, parent)["brand_new"] = {"x": 1}
    assert after.value == expected
