"""``read``: whatever names or holds a config, as a Document. Never raises for a user's mistake."""

import base64
import binascii
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dsconfig.lazily import lazily
from dsconfig.report import Diagnostic
from dsconfig.source import findings, origin
from dsconfig.source.depth import DEEPEST, is_too_deep
from dsconfig.source.document import Document, Format
from dsconfig.source.from_text import document_from_text, unreadable

with lazily():
    from dsconfig.source import from_python, from_yaml

STDIN = "-"
BY_SUFFIX = {
    ".yaml": Format.YAML,
    ".yml": Format.YAML,
    ".py": Format.PYTHON,
    ".json": Format.JSON,
    ".hjson": Format.HJSON,
}


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
        message = f"this dict is nested more than {DEEPEST} levels deep, or contains itself"
        return unreadable(
            name, None, findings.unreadable(message, "a config needs three or four levels")
        )
    return Document(name=name, value=dict(config), format=Format.DICT)


def _read_string(source: str, name: str | None, wanted: Format | None) -> Document:
    """A string is an existing path, else text, else base64, else a path that is missing."""
    if wanted is Format.BASE64:
        return _decode_base64(source, name) or unreadable(name or "<base64>", source, _bad_base64())
    mark = source.startswith("\ufeff")
    content = source.removeprefix("\ufeff")
    is_text = "\n" in content or not content.strip() or content.lstrip()[0] in "{["
    if content.strip() and _exists(source):
        return _read_path(Path(source), name, wanted)
    if is_text:
        return _from_origin(origin.Text(content, has_mark=mark), name or "<text>", wanted)
    return _decode_base64(source, name) or _read_path(Path(source), name, wanted)


def _read_stdin(name: str, wanted: Format | None) -> Document:
    """A file's text, or base64, which has no brace: that is how launchers hand configs on."""
    found = origin.read_stdin()
    wanted = wanted or BY_SUFFIX.get(Path(name).suffix.lower())
    if isinstance(found, origin.Text) and wanted is None and "{" not in found.content:
        decoded = _decode_base64(found.content.strip(), name)
        if decoded is not None:
            return decoded
    return _from_origin(found, name, wanted)


def _exists(source: str) -> bool:
    try:
        return Path(source).exists()
    except (OSError, ValueError):  # too long, or a null character
        return False


def _read_path(path: Path, name: str | None, wanted: Format | None) -> Document:
    wanted = wanted or BY_SUFFIX.get(path.suffix.lower())
    return _from_origin(origin.read_path(path), name or str(path), wanted)


def _from_origin(found: origin.Text | Diagnostic, name: str, wanted: Format | None) -> Document:
    if isinstance(found, Diagnostic):
        return unreadable(name, None, found)
    if wanted is Format.YAML:
        return from_yaml.document_from_yaml(found.content, name, read)
    if wanted is Format.PYTHON:
        return from_python.document_from_python(found.content, name)
    return document_from_text(found.content, name, has_mark=found.has_mark)


def _decode_base64(source: str, name: str | None) -> Document | None:
    """The config in a urlsafe base64 text, as DeepSpeed takes it; None where it is none."""
    try:
        text = base64.urlsafe_b64decode(source).decode("utf-8")
    except (binascii.Error, ValueError):
        return None
    document = document_from_text(text, name or "<base64>", decoded=True)
    holds_object = isinstance(document.value, dict) and not document.is_broken
    return document if holds_object or text.lstrip().startswith("{") else None


def _bad_base64() -> Diagnostic:
    return findings.unreadable(
        "this is not base64 of UTF-8 text", "encode the config with base64.urlsafe_b64encode"
    )
