"""A config with other values, in the layout and with the comments of its file."""

import difflib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from dsconfig.schema.paths import escape
from dsconfig.source.document import Document
from dsconfig.source.edit import (
    EDITABLE,
    apply_edits,
    delete_entry,
    insert_entry,
    replace_value,
)
from dsconfig.source.from_text import document_from_text
from dsconfig.source.layout import Layout
from dsconfig.source.pointer import is_block, lookup, split

_MISSING = object()


def with_values(document: Document, values: Mapping[str, Any]) -> Document:
    """Return the document with each value set at its pointer; missing blocks are created.

    A JSON or HJSON text keeps its layout and comments. Any other document becomes indented JSON.
    """
    document = as_editable(document)
    for pointer, value in values.items():
        document = _with_value(document, pointer, value)
    return document


def without(document: Document, pointer: str) -> Document:
    """Return the document without an entry; unchanged if there is none."""
    if lookup(document.value, pointer, _MISSING) is _MISSING:
        return document
    edits = delete_entry(document, pointer)
    return document_from_text(apply_edits(document.text or "", edits), document.name)


def as_editable(document: Document) -> Document:
    """Return the document as a text that holds its values, overrides (``--set``) included."""
    if document.text is None or document.format not in EDITABLE:
        text = json.dumps(document.value, indent=4, ensure_ascii=False) + "\n"
        return document_from_text(text, document.name)
    written = document_from_text(document.text, document.name)
    for pointer, value in _differences(written.value, document.value, ""):
        written = _with_value(written, pointer, value)
    return written


def _differences(before: Any, after: Any, pointer: str) -> Iterator[tuple[str, Any]]:
    """Yield the pointer and new value of each outermost entry that differs."""
    if not (is_block(before) and is_block(after)):
        if before != after:
            yield pointer, after
        return
    for name, value in after.items():
        yield from _differences(before.get(name, _MISSING), value, f"{pointer}/{escape(name)}")


def _with_value(document: Document, pointer: str, value: Any) -> Document:
    missing: list[str] = []
    while pointer and lookup(document.value, pointer, _MISSING) is _MISSING:
        path = split(pointer)
        pointer = path.parent.pointer
        missing.append(path.name)
    outermost = missing.pop() if missing else None
    for name in missing:
        value = {name: value}
    if outermost is None:
        edits = replace_value(document, pointer, value)
    elif is_block(lookup(document.value, pointer)):
        edits = insert_entry(document, pointer, outermost, value)
    else:
        edits = replace_value(document, pointer, {outermost: value})
    return document_from_text(apply_edits(document.text or "", edits), document.name)


WIDEST = 80
"""Columns of a file with one line that a diff shows as it is."""


def texts_for_diff(before: Document, after: Document) -> tuple[str, str, bool]:
    """Return the texts of two versions of a file, and whether they are indented for display: a
    file of one long line is, unless only its syntax changes."""
    texts = before.text or "", after.text or ""
    line = texts[0].strip()
    if len(line) <= WIDEST or "\n" in line or "\r" in line:
        return *texts, False
    if before.is_broken or not all(is_block(document.value) for document in (before, after)):
        return *texts, False
    old, new = (
        f"{Layout(document.text or '', document.spans).indented()}\n"
        for document in (before, after)
    )
    return (old, new, True) if old != new else (*texts, False)


def changed_lines(before: Document, after: Document) -> list[str]:
    """Return the lines of a unified diff with one line of context, without its headers: ``...``
    separates its hunks."""
    old, new, _ = texts_for_diff(before, after)
    lines = difflib.unified_diff(old.splitlines(), new.splitlines(), lineterm="", n=1)
    changes = [line for line in lines if not line.startswith(("---", "+++"))]
    return ["  ..." if line[0] == "@" else f"{line[0]} {line[1:]}" for line in changes[1:]]
