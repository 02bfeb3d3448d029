"""Placeholders that a launcher fills in before any program reads the file."""

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
"""The usual forms: shell, Jinja, ERB, Python's %, CMake."""
PLACEHOLDER = re.compile(rf"(?:{MARKED.pattern}|<[A-Za-z][\w -]*>)")
CAPITALS = re.compile(r"[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)*,?")
NAME = re.compile(r"(?!(?:True|False|None),?$)[A-Za-z]\w*_\w*,?")
"""A bare name with an underscore, which is a placeholder in a file that has others."""
STATEMENT = re.compile(r"\{[%#].*?[%#]\}", re.DOTALL)
"""Jinja's statements and comments, which leave nothing behind."""
NO_PLACEHOLDERS = frozenset(
    ("NAN", "INF", "TRUE", "FALSE", "NULL", "NONE", "SGD", "ASGD", "INFO", "DEBUG", "WARNING")
)
"""Words in capitals that people do write for themselves."""
ENDS = r"(?=[ \t]*(?:[,}\]\r\n#]|//|\Z))"
TOKEN = re.compile(
    rf"(?:(?:{MARKED.pattern})[\w./-]*)+{ENDS}"
    rf"|(?!(?:{'|'.join(sorted(NO_PLACEHOLDERS))}){ENDS})[A-Z][A-Z0-9]+(?:_[A-Z0-9]+)*{ENDS}"
)
"""A placeholder in place of a value, up to what ends a value in JSON."""


def is_placeholder(text: str, *, is_bare: bool, key_is_quoted: bool = True) -> bool:
    """True when a text value stands for something that is filled in later.

    A word in capitals counts only without quotes, and behind a quoted key (JSON's habit,
    where it cannot be a text) or with an underscore in it.
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
    """Every text in a config, with its JSON Pointer."""
    waiting: list[tuple[str, Any]] = [("", value)]
    while waiting:
        pointer, item = waiting.pop()
        if isinstance(item, str):
            yield pointer, item
        elif is_block(item):
            waiting.extend((f"{pointer}/{escape(str(key))}", part) for key, part in item.items())
        elif is_list(item):
            waiting.extend((f"{pointer}/{index}", part) for index, part in enumerate(item))


def placeholders(source: str, parsed: Parsed) -> frozenset[str]:
    """The pointers whose value is a placeholder."""
    found: set[str] = set()
    for pointer, start, end in parsed.bare_texts:
        key = parsed.places[pointer][0] if pointer in parsed.places else -1
        key_is_quoted = key >= 0 and source[key] in "\"'"
        value = source[start:end].strip()
        if is_placeholder(value, is_bare=True, key_is_quoted=key_is_quoted):
            found.add(pointer)
    for pointer, value in strings(parsed.value):
        if is_placeholder(value, is_bare=False):
            found.add(pointer)
    if found:
        # Where one value is filled in, a bare name is no slip of the keyboard either.
        names = ((each, source[start:end].strip()) for each, start, end in parsed.bare_texts)
        found |= {each for each, text in names if NAME.fullmatch(text)}
    return frozenset(found)


def filled_in(source: str, parsed: Parsed) -> tuple[Parsed, frozenset[str]]:
    """The parsed and its placeholders; read again where taking them for values helps."""
    found = placeholders(source, parsed)
    if parsed.problems and TOKEN.search(source):
        filled = read_filled(source)
        stand_ins = placeholders(source, filled)
        if stand_ins and len(filled.problems) < len(parsed.problems):
            return filled, stand_ins
    return parsed, found


def read_filled(source: str) -> Parsed:
    """Read a text with each placeholder taken for one value, statements for nothing."""
    blank = STATEMENT.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), source)
    return read_hjson(blank, token=TOKEN)
