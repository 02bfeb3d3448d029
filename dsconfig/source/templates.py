"""Placeholders that a launcher fills in before a program reads the file."""

import re
from collections.abc import Iterator
from typing import Any

from dsconfig.source.cursor import Parsed
from dsconfig.source.hjson import read_hjson
from dsconfig.source.pointer import escape, is_block, is_list

MARKED = re.compile(
    r"\$\{[^}\n]+\}|\$\([^)\n]+\)|\{\{.*?\}\}|\{%.*?%\}|<%.*?%>"
    r"|(?<![\w$])\$[A-Za-z_]\w*|%\(\w+\)[sdf]|@[A-Z_]+@|__[A-Z][A-Z_]+__"
)
"""Common placeholder syntax: shell, Jinja, ERB, Python's %, CMake."""
PLACEHOLDER = re.compile(rf"(?:{MARKED.pattern}|<[A-Za-z][\w -]*>)")
CAPITALS = re.compile(r"[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)*,?")
NAME = re.compile(r"(?!(?:True|False|None),?$)[A-Za-z]\w*_\w*,?")
"""An unquoted name with an underscore; a placeholder if the file has others."""
STATEMENT = re.compile(r"\{[%#].*?[%#]\}", re.DOTALL)
"""Jinja statements and comments, which render to nothing."""
NO_PLACEHOLDERS = frozenset(
    ("NAN", "INF", "TRUE", "FALSE", "NULL", "NONE", "SGD", "ASGD", "INFO", "DEBUG", "WARNING")
)
"""Upper-case words that are not placeholders."""
ENDS = r"(?=[ \t]*(?:[,}\]\r\n#]|//|\Z))"
TOKEN = re.compile(
    rf"(?:(?:{MARKED.pattern})[\w./-]*)+{ENDS}"
    rf"|(?!(?:{'|'.join(sorted(NO_PLACEHOLDERS))}){ENDS})[A-Z][A-Z0-9]+(?:_[A-Z0-9]+)*{ENDS}"
)
"""A placeholder in the position of a value."""


def is_placeholder(text: str, *, is_bare: bool, key_is_quoted: bool = True) -> bool:
    """Return whether a string is a placeholder.

    An upper-case word counts only if it is unquoted, and its key is quoted (as in JSON, where it
    would be invalid) or it contains an underscore.
    """
    if "${" in text or "{{" in text:
        return True
    if not is_bare:
        return PLACEHOLDER.fullmatch(text) is not None
    token = text.rstrip(", \t")
    if PLACEHOLDER.fullmatch(token):
        return True
    if not CAPITALS.fullmatch(text) or token in NO_PLACEHOLDERS or len(token) < 2:
        return False
    return key_is_quoted or "_" in token


def strings(value: Any) -> Iterator[tuple[str, str]]:
    """Yield every string in a config with its JSON Pointer."""
    pending: list[tuple[str, Any]] = [("", value)]
    while pending:
        pointer, item = pending.pop()
        if isinstance(item, str):
            yield pointer, item
        elif is_block(item):
            pending.extend((f"{pointer}/{escape(str(key))}", child) for key, child in item.items())
        elif is_list(item):
            pending.extend((f"{pointer}/{index}", child) for index, child in enumerate(item))


def placeholders(source: str, parsed: Parsed) -> frozenset[str]:
    """Return the pointers whose value is a placeholder."""
    pointers: set[str] = set()
    for pointer, start, end in parsed.bare_texts:
        key = parsed.places[pointer][0] if pointer in parsed.places else -1
        key_is_quoted = key >= 0 and source[key] in "\"'"
        value = source[start:end].strip()
        if is_placeholder(value, is_bare=True, key_is_quoted=key_is_quoted):
            pointers.add(pointer)
    for pointer, value in strings(parsed.value):
        if is_placeholder(value, is_bare=False):
            pointers.add(pointer)
    if pointers:
        # In a file with placeholders an unquoted name is one as well, not a typo.
        names = ((at, source[start:end].strip()) for at, start, end in parsed.bare_texts)
        pointers |= {at for at, name in names if NAME.fullmatch(name)}
    return frozenset(pointers)


def filled_in(source: str, parsed: Parsed) -> tuple[Parsed, frozenset[str]]:
    """Return the result and its placeholders; parse again if treating them as values helps."""
    found = placeholders(source, parsed)
    if parsed.problems and TOKEN.search(source):
        filled = read_filled(source)
        values = placeholders(source, filled)
        if values and len(filled.problems) < len(parsed.problems):
            return filled, values
    return parsed, found


def read_filled(source: str) -> Parsed:
    """Parse a text with each placeholder as one value and statements removed."""
    return read_hjson(_without_statements(source), token=TOKEN)


def _without_statements(source: str) -> str:
    """Return the source with statements replaced by spaces, so that positions stay."""
    return STATEMENT.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), source)


HIDDEN = re.compile("([\ue000-\uf8ff])\\1*")
"""Runs of one private character, each a placeholder in a text made by :func:`hidden`."""
MOST_HIDDEN = 0xF8FF - 0xE000


def hidden(text: str) -> tuple[str, list[str]]:
    """Return a text with each placeholder replaced by as many private characters, and the
    placeholders; statements become spaces.

    YAML gives braces and percent signs another meaning; positions are those of ``text``.
    """
    if HIDDEN.search(text):
        return text, []
    originals: list[str] = []

    def hide(match: re.Match[str]) -> str:
        if len(originals) >= MOST_HIDDEN:
            return match[0]
        originals.append(match[0])
        return chr(0xE000 + len(originals) - 1) * len(match[0])

    return MARKED.sub(hide, _without_statements(text)), originals


def shown(text: str, originals: list[str]) -> str:
    """Return a part of a hidden text with its placeholders."""
    return HIDDEN.sub(lambda match: originals[ord(match[1]) - 0xE000], text)
