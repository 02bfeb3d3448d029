"""``read``: whatever names or holds a config, as a Document. Never raises for a user's mistake."""

import base64
import binascii
import errno
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from dsconfig.lazy_imports import lazy_imports
from dsconfig.report import Diagnostic
from dsconfig.source import findings
from dsconfig.source.document import Document, Format, unreadable
from dsconfig.source.file_kinds import ARGUMENTS, LAUNCH, another_kind
from dsconfig.source.from_text import document_from_text
from dsconfig.source.pointer import (
    MAX_DEPTH,
    MAX_VALUES,
    is_block,
    is_too_deep,
    is_too_large,
    to_plain,
)

with lazy_imports():
    from dsconfig.source import from_python, from_yaml

MAX_BYTES = 64 * 2**20
"""Inputs above this size (64 MiB) are refused; a ds_config has some kilobytes."""

WORDS = {
    errno.ENOENT: ("there is no such file", "check the path"),
    errno.ENOTDIR: ("there is no such file", "check the path"),
    errno.EACCES: ("you may not read this file", "give yourself read permission"),
    errno.EPERM: ("you may not read this file", "give yourself read permission"),
    errno.ELOOP: ("this is a link that leads to itself", "name the file itself"),
    errno.ENAMETOOLONG: ("this is too long to be a file name", "check the path"),
}
STDIN = "-"
BY_SUFFIX = {
    ".yaml": Format.YAML,
    ".yml": Format.YAML,
    ".py": Format.PYTHON,
    ".json": Format.JSON,
    ".hjson": Format.HJSON,
}


class Text(NamedTuple):
    """Text that was found. ``has_bom`` says that a byte order mark was taken off."""

    content: str
    has_bom: bool = False


def read(
    source: str | os.PathLike[str] | Mapping[str, Any],
    *,
    name: str | None = None,
    format: Format | str | None = None,
) -> Document:
    """Read a config from a path, ``-`` (standard input), text, base64 or a dict.

    ``name`` is what findings call it; ``format`` overrides what name and content suggest
    (``Format.JSON`` and ``Format.HJSON`` mean the same reader). What is wrong with the input
    stands in the document's diagnostics. Raises TypeError for a source of another kind and
    ValueError for an unknown format.
    """
    wanted = None if format is None else Format(format)
    if isinstance(source, Mapping):
        return document_from_dict(source, name or "<dict>")
    if isinstance(source, os.PathLike):
        return _read_path(Path(source), name, wanted)
    if not isinstance(source, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"a config is a path, a text or a dict, not {type(source).__name__}")
    if source == STDIN:
        return _read_stdin(name or "<stdin>", wanted)
    return _read_string(source, name, wanted)


def document_from_dict(config: Mapping[str, Any], name: str) -> Document:
    """A config that a program built: no text, no positions."""
    if is_too_deep(config):
        message = f"this dict is nested more than {MAX_DEPTH} levels deep, or contains itself"
        why = findings.unreadable(message, "a config needs three or four levels")
        return unreadable(name, None, why)
    if is_too_large(config):
        message = f"this dict has more than {MAX_VALUES:,} values, shared ones counted each time"
        return unreadable(name, None, findings.unreadable(message, "a config has some dozens"))
    return Document(name=name, value=dict(to_plain(config)), format=Format.DICT)


def _read_string(source: str, name: str | None, wanted: Format | None) -> Document:
    """A string is an existing path, else text, else base64, else a path that is missing."""
    if wanted is Format.BASE64:
        remedy = "encode the config with base64.urlsafe_b64encode"
        no_text = findings.unreadable("this is not base64 of UTF-8 text", remedy)
        return _decode_base64(source, name) or unreadable(name or "<base64>", source, no_text)
    mark = source.startswith("\ufeff")
    content = source.removeprefix("\ufeff")
    is_text = "\n" in content or not content.strip() or content.lstrip()[0] in "{["
    # Path.exists raises for what is too long, or has a null character.
    if content.strip() and os.path.exists(Path(source)):  # noqa: PTH110
        return _read_path(Path(source), name, wanted)
    if is_text:
        return _from_origin(Text(content, has_bom=mark), name or "<text>", wanted)
    return _decode_base64(source, name) or _read_path(Path(source), name, wanted)


def _read_stdin(name: str, wanted: Format | None) -> Document:
    """A file's text, or base64, which has no brace: that is how launchers hand configs on."""
    found = read_stdin()
    wanted = wanted or BY_SUFFIX.get(Path(name).suffix.lower())
    if isinstance(found, Text) and wanted is None and "{" not in found.content:
        decoded = _decode_base64(found.content.strip(), name)
        if decoded is not None:
            return decoded
    return _from_origin(found, name, wanted)


def _read_path(path: Path, name: str | None, wanted: Format | None) -> Document:
    wanted = wanted or BY_SUFFIX.get(path.suffix.lower())
    return _from_origin(read_path(path), name or str(path), wanted)


def _from_origin(found: Text | Diagnostic, name: str, wanted: Format | None) -> Document:
    if isinstance(found, Diagnostic):
        return unreadable(name, None, found)
    if wanted is Format.YAML:
        return from_yaml.document_from_yaml(found.content, name, read)
    if wanted is Format.PYTHON:
        return from_python.document_from_python(found.content, name)
    document = document_from_text(found.content, name, has_bom=found.has_bom)
    if document.format is Format.JSON and _names_a_config(document):
        return from_yaml.document_from_yaml(found.content, name, read, is_json=True)
    return document


def _names_a_config(document: Document) -> bool:
    """Whether this is the JSON of a trainer or of accelerate that says where a config is."""
    held = document.value if is_block(document.value) else {}
    kind = another_kind(held)
    return kind is LAUNCH or (
        kind is ARGUMENTS and any(key in held for key in from_yaml.EMBEDDING_KEYS)
    )


def _decode_base64(source: str, name: str | None) -> Document | None:
    """The config in a urlsafe base64 text, as DeepSpeed takes it; None where it is none."""
    try:
        text = base64.urlsafe_b64decode(source).decode("utf-8")
    except (binascii.Error, ValueError):
        return None
    document = document_from_text(text, name or "<base64>", decoded=True)
    holds_object = isinstance(document.value, dict) and not document.is_broken
    return document if holds_object or text.lstrip().startswith("{") else None


# --- bytes from a file or a pipe, and why there are none


def read_path(path: Path) -> Text | Diagnostic:
    """The text of a file, or the one finding that says why there is none."""
    try:
        if path.is_dir():
            message = "this is a directory, not a config"
            return findings.unreadable(message, "name a file in it, or validate it whole")
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        return _failure(error)
    return decode(data)


def read_stdin() -> Text | Diagnostic:
    """The text on standard input."""
    try:
        return decode(sys.stdin.buffer.read(MAX_BYTES + 1))
    except (OSError, ValueError, AttributeError) as error:
        return _failure(error)


def decode(data: bytes) -> Text | Diagnostic:
    """UTF-8 text without its byte order mark."""
    if len(data) > MAX_BYTES:
        limit = MAX_BYTES // 2**20
        message = f"this is larger than {limit} MiB, so it is no config"
        return findings.unreadable(message, "name the config itself")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        return _not_text(data, error)
    mark = text.startswith("\ufeff")
    return Text(text[1:] if mark else text, has_bom=mark)


def _not_text(data: bytes, error: UnicodeDecodeError) -> Diagnostic:
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        message = "this is UTF-16 text; DeepSpeed reads UTF-8 only and stops"
        return findings.unreadable(message, "save the file as UTF-8")
    line = data.count(b"\n", 0, error.start) + 1
    message = f"this is not UTF-8 text: byte 0x{data[error.start]:02x} on line {line}"
    return findings.unreadable(message, "name a text file, or save it as UTF-8")


def _failure(error: Exception) -> Diagnostic:
    number = error.errno if isinstance(error, OSError) else None
    message, help = WORDS.get(number or 0, (f"this cannot be read: {error}", "check the path"))
    return findings.unreadable(message, help)
