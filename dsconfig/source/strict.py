"""Conversion of HJSON to strict JSON, keeping the layout."""

import json
import re
from collections.abc import Iterator
from difflib import SequenceMatcher
from itertools import zip_longest
from math import isfinite
from typing import Any

from dsconfig.report import Applicability, Edit, Fix, writers
from dsconfig.source import override, tokens
from dsconfig.source.document import Document, Format
from dsconfig.source.from_text import NUMBER_WORD, PYTHON_WORDS, document_from_text
from dsconfig.source.pointer import copied, escape, is_block, is_list, lookup, split, value_at
from dsconfig.source.positions import LineIndex

MAX_STEPS = 400
"""Maximum number of strict-JSON errors fixed per file."""
_WORD = re.compile(r"[A-Za-z]+")


def convert_help(name: str) -> str:
    """Return the help for a config that programs which read strict JSON reject."""
    file = writers.shell([name])
    return f"convert it to strict JSON: `dsconfig convert {file} --to json -o strict.json`"


def as_json_reads(document: Document) -> Any:
    """Return the values as Python's ``json`` parses them: 1.0 and 5e8 are floats."""
    if document.text is None or document.json_error is not None or document.is_broken:
        return copied(document.value)
    try:
        read = json.loads(document.text)
        override.apply(read, document.overrides)
        return _numbers_of(document.value, read)
    except ValueError:  # not JSON
        return copied(document.value)


def _numbers_of(value: Any, read: Any) -> Any:
    """Return a copy of ``value`` with the floats of ``read`` for integers of the same value."""
    if is_block(value):
        other = read if is_block(read) else {}
        return {name: _numbers_of(child, other.get(name)) for name, child in value.items()}
    if is_list(value):
        others = read if is_list(read) else []
        return [_numbers_of(*pair) for pair in zip_longest(value, others[: len(value)])]
    is_same = isinstance(read, float) and type(value) is int and read == float(value)
    return read if is_same else value


def as_strict_json_reads(document: Document) -> Document:
    """Return the document as transformers and accelerate read it: NaN and Infinity are numbers."""
    text = document.text
    if text is None or document.format is not Format.JSON or document.container:
        return document
    if document.json_error is not None or NUMBER_WORD.search(text) is None:
        return document
    read = document_from_text(text, document.name, number_words=True)
    if document.is_broken:
        return read
    value = copied(document.value)  # may contain overrides
    for pointer, number in _floats(read.value):
        path = split(pointer)
        parent, last = value_at(value, path.parent), path.name
        if isinstance(lookup(value, pointer), str):
            parent[int(last) if isinstance(parent, list) else last] = number
    return read._replace(value=value, spans=document.spans)


def _floats(value: Any, pointer: str = "") -> Iterator[tuple[str, float]]:
    """Yield the non-finite numbers of a config with their pointers."""
    if isinstance(value, float) and not isfinite(value):
        yield pointer, value
    elif is_block(value):
        for key, child in value.items():
            yield from _floats(child, f"{pointer}/{escape(key)}")
    elif is_list(value):
        for index, child in enumerate(value):
            yield from _floats(child, f"{pointer}/{index}")


def strict_fix(document: Document) -> Fix | None:
    """Return the fix that makes the text strict JSON with the same values, or None.

    Safe if only commas and quotes change; unsafe if comments are lost.
    """
    text = document.text
    if text is None or document.json_error is None or "\r" in text or document.has_bom:
        return None
    try:
        fixed, lost = _fixed(text)
    except tokens.TokenError:
        return None
    if fixed is None or json.loads(fixed) != document.value:
        return None
    edits = tuple(_edits(text, fixed))
    return Fix(Applicability.UNSAFE if lost else Applicability.SAFE, edits)


def _fixed(text: str) -> tuple[str | None, bool]:
    """Return the text as strict JSON (or None), and whether a comment was removed."""
    lost = False
    for _ in range(MAX_STEPS):
        try:
            json.loads(text)
        except json.JSONDecodeError as error:
            rest = text[error.pos :]
            lost = lost or rest.startswith(("#", "//", "/*"))
            changed = _step(text, error)
            if changed is None:
                return None, lost
            text = changed
        else:
            return text, lost
    return None, lost


def _step(text: str, error: json.JSONDecodeError) -> str | None:
    """Return the text with one error fixed, or None if it cannot be fixed."""
    at = error.pos
    rest, before = text[at:], text[:at].rstrip()
    if rest.startswith(("#", "//", "/*")):
        return _without_comment(text, at)
    if rest[:1] in ("}", "]") and before.endswith(","):
        return before[:-1] + text[len(before) :]
    if rest.startswith(",") and text[at + 1 :].lstrip()[:1] in ("}", "]"):
        return text[:at] + text[at + 1 :]
    if error.msg.startswith("Expecting ','"):
        return f"{before},{text[len(before) :]}"
    if rest.startswith("'"):
        value, end = tokens.quoted(text, at)
        return text[:at] + json.dumps(value, ensure_ascii=False) + text[end:]
    if error.msg.startswith("Expecting property name"):
        key = tokens.BARE_KEY.match(text, at)
        return None if key is None else f'{text[:at]}"{key[0]}"{text[key.end() :]}'
    word = _WORD.match(text, at)
    if word is not None and word[0] in PYTHON_WORDS:
        return text[:at] + PYTHON_WORDS[word[0]] + text[word.end() :]
    return None


def _without_comment(text: str, at: int) -> str:
    """Remove a comment, and its line if nothing else is on it."""
    end = text.find("*/", at) + 2 if text.startswith("/*", at) else tokens.end_of_line(text, at)
    begin = len(text[:at].rstrip(" \t"))
    alone = begin == 0 or text[begin - 1] == "\n"
    if alone and text[end : end + 1] == "\n":
        end += 1
    return text[:begin] + text[end:]


def _edits(before: str, after: str) -> Any:
    """Yield edits for the lines that differ."""
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    lines = LineIndex(before)
    for tag, i1, i2, j1, j2 in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag != "equal":
            start = sum(map(len, old[:i1]))
            end = sum(map(len, old[:i2]))
            yield Edit(lines.range(start, end), "".join(new[j1:j2]))
