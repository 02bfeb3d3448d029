"""Edits that keep comments and layout.

Each builder returns the edits, or an empty tuple if there is no text to edit (a dict, base64, YAML,
Python, or a pointer without a position).
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from dsconfig.lazy_imports import lazy_imports
from dsconfig.report import Applicability, Edit, Fix
from dsconfig.source.document import Document, Format
from dsconfig.source.findings import quoted
from dsconfig.source.pointer import lookup, split
from dsconfig.source.positions import LineIndex

with lazy_imports():
    from dsconfig.source import layout

Edits = tuple[Edit, ...]
EDITABLE = (Format.JSON, Format.HJSON)


def rename_key(document: Document, pointer: str, new_name: str) -> Edits:
    """Rename the key at ``pointer``, keeping its quote style."""
    layout = _layout(document, pointer)
    place = layout.places[pointer].key if layout else None
    if layout is None or place is None:
        return ()
    quote = layout.at(place.start)
    if quote == "'":
        content = f"'{new_name}'"
    elif quote == '"' or not new_name.isidentifier():
        content = quoted(new_name)
    else:
        content = new_name
    return (Edit(place, content),)


def replace_value(document: Document, pointer: str, value: Any) -> Edits:
    """Replace the value at ``pointer``; the new one is written as JSON."""
    layout = _layout(document, pointer)
    return layout.new_value(pointer, value) if layout else ()


def delete_entry(document: Document, pointer: str) -> Edits:
    """Delete an entry with its comma, line and trailing comment."""
    layout = _layout(document, pointer)
    return layout.deletion(pointer) if layout and pointer else ()


def insert_entry(document: Document, parent: str, key: str, value: Any) -> Edits:
    """Append an entry to the object at ``parent``."""
    layout = _layout(document, parent)
    if layout is None:
        return ()
    return layout.insertion(parent, f"{quoted(key)}: {layout.render(value)}")


def move_entry(document: Document, pointer: str, parent: str, new_name: str | None = None) -> Edits:
    """Move an entry into the object at ``parent``, which is created if missing."""
    missing = object()
    value = lookup(document.value, pointer, missing)
    layout = _layout(document, pointer)
    if layout is None or value is missing:
        return ()
    entry = f"{quoted(new_name or split(pointer)[-1])}: {layout.written(pointer, value)}"
    above, _, name = parent.rpartition("/")
    if lookup(document.value, parent, missing) is missing:
        wrapped = layout.wrapped(name, entry)
        if above == pointer.rpartition("/")[0]:
            return layout.replacement(pointer, wrapped)
        insertion = layout.insertion(above, wrapped)
    else:
        insertion = layout.insertion(parent, entry)
    deletion = layout.deletion(pointer, keep_comment=True)
    edits = tuple(sorted((*deletion, *insertion), key=lambda edit: edit.range))
    return edits if insertion and not _overlap(edits) else ()


def as_fix(edits: Edits, *, safe: bool = True) -> Fix | None:
    """Return the edits as a fix, or None if there are none."""
    if not edits:
        return None
    return Fix(Applicability.SAFE if safe else Applicability.UNSAFE, edits)


def apply_edits(text: str, edits: Iterable[Edit]) -> str:
    """Return the text with all edits applied. Raises ValueError if two edits overlap."""
    ordered = sorted(edits, key=lambda edit: edit.range)
    if _overlap(ordered):
        raise ValueError("overlapping edits; apply one fix at a time")
    lines = LineIndex(text)
    line_end = "\r\n" if "\r\n" in text else "\n"
    parts: list[str] = []
    done = 0
    for edit in ordered:
        start, end = lines.offset(edit.range.start), lines.offset(edit.range.end)
        parts += text[done:start], edit.content.replace("\n", line_end)
        done = end
    parts.append(text[done:])
    return "".join(parts)


def apply_fixes(text: str, fixes: Iterable[Fix]) -> tuple[str, int]:
    """Return the text with all compatible fixes applied, and their number.

    A fix that overlaps an earlier one is skipped; apply it in another call.
    """
    chosen = compatible(fixes)
    return apply_edits(text, (edit for fix in chosen for edit in fix.edits)), len(chosen)


def compatible(fixes: Iterable[Fix]) -> list[Fix]:
    """Return the fixes that do not overlap an earlier one."""
    edits: list[Edit] = []
    chosen: list[Fix] = []
    for fix in fixes:
        together = sorted((*edits, *fix.edits), key=lambda edit: edit.range)
        if set(fix.edits).isdisjoint(edits) and not _overlap(together):
            edits = together
            chosen.append(fix)
    return chosen


def _layout(document: Document, pointer: str) -> "layout.Layout | None":
    """Return the layout of an editable text that contains the pointer, else None."""
    if document.text is None or document.format not in EDITABLE or pointer not in document.spans:
        return None
    return layout.Layout(document.text, document.spans)


def _overlap(ordered: Sequence[Edit]) -> bool:
    return any(
        before.range.end > after.range.start or before.range == after.range
        for before, after in pairwise(ordered)
    )
