"""What is at a position of a config: an entry of the file, or a place for a key or a value."""

import re
from typing import NamedTuple

from dsconfig.report import Position, Range
from dsconfig.source import Document
from dsconfig.source.document import Format
from dsconfig.source.positions import LineIndex


def entry_at(document: Document, position: Position) -> str | None:
    """Return the pointer of the innermost entry at a position, or None outside of the config."""
    inside = (
        (_start(span.key or span.value), pointer)
        for pointer, span in document.spans.items()
        if _contains(span.key, position) or _contains(span.value, position)
    )
    return max(inside, default=(None, None))[1]


def is_on(document: Document, pointer: str, position: Position) -> bool:
    """Return whether a position is on the key of an entry, or on a value that is not a block."""
    span = document.spans[pointer]
    if _contains(span.key, position):
        return True
    nested = any(other.startswith(f"{pointer}/") for other in document.spans)
    return not nested and _contains(span.value, position)


def _start(place: Range) -> Position:
    return place.start


def _contains(place: Range | None, position: Position) -> bool:
    return place is not None and place.start <= position <= place.end


class Gap(NamedTuple):
    """A place where something can be written.

    ``path``: the enclosing block, or the key whose value is to be written if ``is_value``.
    ``written``: what is left of the cursor. ``is_quoted``: the cursor is inside quotation marks.
    """

    path: tuple[str, ...]
    is_value: bool
    written: str
    is_quoted: bool


def gap_at(document: Document, position: Position) -> Gap | None:
    """Return what can be written at a position; None in a comment or where nothing fits."""
    text = document.text or ""
    before = text[: LineIndex(text).offset(position)]
    if document.format is Format.YAML:
        return _gap_in_yaml(before)
    if document.format is Format.PYTHON:
        before = before[_start_of_dict(document, text) :]
    return _gap_in_braces(before)


def _start_of_dict(document: Document, text: str) -> int:
    root = document.spans.get("")
    return LineIndex(text).offset(root.value.start) if root is not None else 0


_TOKEN = re.compile(
    r"""(?P<comment>\#[^\n]*|//[^\n]*|/\*.*?(?:\*/|\Z))"""
    r"""|(?P<text>"(?:[^"\\\n]|\\.)*"?|'(?:[^'\\\n]|\\.)*'?)"""
    r"""|(?P<mark>[{}\[\],:])"""
    r"""|(?P<word>[^\s{}\[\],:"'#]+)"""
    r"""|(?P<line>\n)""",
    re.DOTALL,
)


def _gap_in_braces(before: str) -> Gap | None:
    """Scan what is left of the cursor; strings may be open, entries incomplete."""
    blocks: list[str | None] = []  # the key of each open block; None for a list
    key, is_value, last = "", False, None
    for last in _TOKEN.finditer(before):
        token = last[0]
        if last["text"] or last["word"]:
            if not is_value:
                key = token.strip("\"'")
        elif token in ("{", "["):
            blocks.append(key if token == "{" else None)
            key, is_value = "", False
        elif token in ("}", "]"):
            if blocks:
                blocks.pop()
            key, is_value = "", False
        elif token == ":":
            is_value = True
        elif token == "," or (token == "\n" and not is_value):
            key, is_value = "", False
    if not blocks or None in blocks or (last is not None and last["comment"] and _ends(last)):
        return None
    path = tuple(block for block in blocks[1:] if block is not None)
    written, is_quoted = "", False
    if last is not None and last.end() == len(before) and (last["text"] or last["word"]):
        written = last[0].lstrip("\"'")
        is_quoted = last[0][0] in "\"'"
        if is_quoted and len(last[0]) > 1 and last[0][-1] == last[0][0]:
            return None  # after a complete string
    return Gap((*path, key) if is_value else path, is_value, written, is_quoted)


def _ends(comment: re.Match[str]) -> bool:
    return comment.end() == len(comment.string) and not comment[0].endswith("*/")


_YAML_LINE = re.compile(r"(?P<indent>[ ]*)(?P<item>-[ ]+)?(?P<key>[\w.-]+|\"[^\"]*\"):(?P<rest>.*)")


def _gap_in_yaml(before: str) -> Gap | None:
    *above, current = before.split("\n")
    if "#" in current:
        return None
    indent = len(current) - len(current.lstrip(" "))
    match = _YAML_LINE.match(current)
    path: list[str] = []
    for line in reversed(above):
        parent = _YAML_LINE.match(line)
        if parent and len(parent["indent"]) < indent and not parent["rest"].strip():
            indent = len(parent["indent"])
            path.insert(0, parent["key"].strip('"'))
    if match is not None:
        written = match["rest"].strip()
        return Gap(
            (*path, match["key"].strip('"')), True, written.lstrip("\"'"), written[:1] in "\"'"
        )
    return Gap(tuple(path), False, current.strip(), False)
