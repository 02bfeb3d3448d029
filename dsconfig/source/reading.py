"""Read a config from a path, standard input, text, base64 or a dict.

User errors become diagnostics of the Document, not exceptions.
"""

import base64
import binascii
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from dsconfig import os_errors
from dsconfig.lazy_imports import lazy_imports
from dsconfig.report import Diagnostic
from dsconfig.source import findings, option_configs
from dsconfig.source.document import Document, Format, bounded, unreadable
from dsconfig.source.file_kinds import ARGUMENTS, LAUNCH, SCRIPTS, another_kind, has_own_keys
from dsconfig.source.from_text import document_from_text
from dsconfig.source.plain import shown, to_plain
from dsconfig.source.pointer import (
    MAX_DEPTH,
    MAX_VALUES,
    is_block,
    is_too_deep,
    is_too_large,
)
from dsconfig.source.positions import Offsets, Spans

with lazy_imports():
    from dsconfig.source import from_python, from_shell, from_yaml

MAX_BYTES = 64 * 2**20
"""Maximum input size (64 MiB); a ds_config has a few kilobytes."""

STDIN = "-"
BY_SUFFIX = {
    ".yaml": Format.YAML,
    ".yml": Format.YAML,
    ".py": Format.PYTHON,
    ".json": Format.JSON,
    ".hjson": Format.HJSON,
    **dict.fromkeys(SCRIPTS, Format.SHELL),
}


class Text(NamedTuple):
    """Text of an input; ``has_bom``: a byte order mark was removed."""

    content: str
    has_bom: bool = False


def read(
    source: str | os.PathLike[str] | Mapping[str, Any],
    *,
    name: str | None = None,
    format: Format | str | None = None,
) -> Document:
    """Read a config from a path, ``-`` (standard input), text, base64 or a dict.

    ``name`` is used in diagnostics; ``format`` overrides the format inferred from name and content
    (``Format.JSON`` and ``Format.HJSON`` use the same parser). Problems of the input become the
    document's diagnostics. Raises TypeError for a source of another type and ValueError for an
    unknown format.
    """
    if name is not None and not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"name must be a string, not {type(name).__name__}")
    wanted = None if format is None else Format(format)
    if isinstance(source, Mapping):
        return document_from_dict(source, name or "<dict>")
    if isinstance(source, os.PathLike):
        return _read_path(_path(source), name, wanted)
    if not isinstance(source, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"expected a path, a string or a dict, not {type(source).__name__}")
    source = str.__str__(source)  # without the methods of a subclass
    if source == STDIN:
        return _read_stdin(name or "<stdin>", wanted)
    return _read_string(source, name, wanted)


def _path(source: os.PathLike[str]) -> Path:
    """Return a path object. Raises TypeError if it has no text."""
    try:
        return Path(source)
    except Exception as error:  # raised by a method of the object, which is not ours
        kind, why = type(source).__name__, type(error).__name__
        raise TypeError(f"expected a path, a string or a dict: {kind} raises {why}") from None


def document_from_dict(config: Mapping[str, Any], name: str) -> Document:
    """Return the document of a dict, without text and positions."""
    try:
        return _from_dict(config, name)
    except Exception as error:  # raised by a method of a mapping in it, which is not ours
        message = f"dict cannot be read: {type(error).__name__}: {shown(error)}"
        return unreadable(name, None, findings.unreadable(message, "pass a dict of JSON values"))


def document_from_options(
    config: Mapping[str, Any], path: Path, places: Mapping[str, Offsets]
) -> Document:
    """Return the document of a config that a program builds from the options in a file; ``places``:
    where they are, by pointer of the config."""
    text = path.read_text("utf-8-sig")
    spans = Spans(text, {"": (-1, -1, 0, len(text)), **places})
    return _from_dict(config, str(path))._replace(text=text, spans=spans)


def _from_dict(config: Mapping[str, Any], name: str) -> Document:
    if is_too_deep(config):
        message = f"dict is nested more than {MAX_DEPTH} levels deep or contains itself"
        why = findings.unreadable(message, "a config has three or four levels")
        return unreadable(name, None, why)
    if is_too_large(config):
        message = f"dict has more than {MAX_VALUES:,} values, counting shared ones repeatedly"
        return unreadable(name, None, findings.unreadable(message, "a config has a few dozen"))
    return bounded(Document(name=name, value=dict(to_plain(config)), format=Format.DICT))


def _read_string(source: str, name: str | None, wanted: Format | None) -> Document:
    """Read a string: an existing path, else text, else base64, else a missing path."""
    if wanted is Format.BASE64:
        help = "encode the config with base64.urlsafe_b64encode"
        no_text = findings.unreadable("not base64-encoded UTF-8 text", help)
        return _decode_base64(source, name) or unreadable(name or "<base64>", source, no_text)
    mark = source.startswith("\ufeff")
    content = source.removeprefix("\ufeff")
    is_text = "\n" in content or not content.strip() or content.lstrip()[0] in "{["
    if content.strip() and os_errors.exists(Path(source)):
        return _read_path(Path(source), name, wanted)
    if is_text:
        return _from_text(Text(content, has_bom=mark), name or "<text>", wanted)
    return _decode_base64(source, name) or _read_path(Path(source), name, wanted)


def _read_stdin(name: str, wanted: Format | None) -> Document:
    """Read standard input: text, or base64 as launchers pass it (it has no brace)."""
    text = read_stdin()
    wanted = wanted or BY_SUFFIX.get(Path(name).suffix.lower())
    if isinstance(text, Text) and wanted is None and "{" not in text.content:
        decoded = _decode_base64(text.content.strip(), name)
        if decoded is not None:
            return decoded
    return _from_text(text, name, wanted)


def read_text(text: str, name: str) -> Document:
    """Read a text as the content of the file with this name, whose suffix decides the format."""
    content = Text(text.removeprefix("\ufeff"), has_bom=text.startswith("\ufeff"))
    return _from_text(content, name, BY_SUFFIX.get(Path(name).suffix.lower()))


def _read_path(path: Path, name: str | None, wanted: Format | None) -> Document:
    wanted = wanted or BY_SUFFIX.get(path.suffix.lower())
    return _from_text(read_path(path), name or str(path), wanted)


def _from_text(source: Text | Diagnostic, name: str, wanted: Format | None) -> Document:
    if isinstance(source, Diagnostic):
        return unreadable(name, None, source)
    if wanted is Format.YAML:
        return from_yaml.document_from_yaml(source.content, name, read)
    if wanted is Format.SHELL:
        return from_shell.document_from_shell(source.content, name, read)
    if wanted is Format.PYTHON:
        return from_python.document_from_python(source.content, name)
    document = document_from_text(source.content, name, has_bom=source.has_bom)
    if document.format is Format.JSON and _names_a_config(document):
        return from_yaml.document_from_yaml(source.content, name, read, is_json=True)
    return document


def _names_a_config(document: Document) -> bool:
    """Return whether this is the JSON of a trainer or accelerate that names a config, in nested
    blocks too."""
    config = document.value if is_block(document.value) else {}
    kind = another_kind(config)
    if kind is LAUNCH or option_configs.built_config(config) is not None:
        return True
    if kind not in (ARGUMENTS, None) or has_own_keys(config):
        return False
    if kind is ARGUMENTS and any(key in config for key in from_yaml.EMBEDDING_KEYS):
        return True
    return any(map(_names_a_file, _blocks(config)))


def _blocks(config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield a block and those nested in it."""
    yield config
    for value in config.values():
        if is_block(value):
            yield from _blocks(value)


def _names_a_file(block: Mapping[str, Any]) -> bool:
    named = [block[key] for key in from_yaml.EMBEDDING_KEYS if key in block]
    return any(isinstance(value, str) and value.endswith(from_yaml.SUFFIXES) for value in named)


def _decode_base64(source: str, name: str | None) -> Document | None:
    """Decode a config from urlsafe base64, as DeepSpeed accepts it, or return None."""
    try:
        text = base64.urlsafe_b64decode(source).decode("utf-8")
    except (binascii.Error, ValueError):
        return None
    document = document_from_text(text, name or "<base64>", decoded=True)
    is_object = isinstance(document.value, dict) and not document.is_broken
    return document if is_object or text.lstrip().startswith("{") else None


# --- files and pipes


def read_path(path: Path) -> Text | Diagnostic:
    """Return the text of a file, or a finding."""
    try:
        if os_errors.is_folder(path):
            message = "is a directory, not a config"
            return findings.unreadable(
                message, "specify a file, or use `dsconfig validate` on the directory"
            )
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        return _failure(error)
    return decode(data)


def read_stdin() -> Text | Diagnostic:
    """Return the text on standard input, or a finding."""
    try:
        return decode(sys.stdin.buffer.read(MAX_BYTES + 1))
    except (OSError, ValueError, AttributeError) as error:
        return _failure(error)


def decode(data: bytes) -> Text | Diagnostic:
    """Decode UTF-8 text and remove its byte order mark."""
    if len(data) > MAX_BYTES:
        limit = MAX_BYTES // 2**20
        message = f"larger than {limit} MiB, so not a config"
        return findings.unreadable(message, "specify the config")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        return _not_text(data, error)
    mark = text.startswith("\ufeff")
    return Text(text[1:] if mark else text, has_bom=mark)


def _not_text(data: bytes, error: UnicodeDecodeError) -> Diagnostic:
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        message = "UTF-16 text; DeepSpeed reads only UTF-8"
        return findings.unreadable(message, "save the file as UTF-8")
    line = data.count(b"\n", 0, error.start) + 1
    message = f"not UTF-8 text: byte 0x{data[error.start]:02x} on line {line}"
    return findings.unreadable(message, "specify a text file, or save it as UTF-8")


def _failure(error: Exception) -> Diagnostic:
    return findings.unreadable(*os_errors.message_and_help(error))
