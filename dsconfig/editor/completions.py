"""What can be written at a position: keys of the enclosing block, or values of a key."""

import json
from collections.abc import Iterator
from enum import StrEnum
from typing import Any, NamedTuple

from dsconfig.editor.cursor import Gap, gap_at
from dsconfig.editor.open_file import OpenFile
from dsconfig.report import Position
from dsconfig.runtimes.base import AUTO, AutoHandling
from dsconfig.schema import Key, find
from dsconfig.schema.catalogue import blocks_of, live_names, named
from dsconfig.schema.config import DSConfig
from dsconfig.schema.paths import KeyPath
from dsconfig.source.document import Format
from dsconfig.source.pointer import is_block, value_at


class CompletionKind(StrEnum):
    KEY = "key"
    BLOCK = "block"
    VALUE = "value"


class Completion(NamedTuple):
    """A key or value; ``text`` replaces the ``replaced`` characters left of the cursor."""

    label: str
    kind: CompletionKind
    text: str
    replaced: int
    detail: str
    doc: str


def completions(file: OpenFile, position: Position) -> list[Completion]:
    """Return what fits at a position, in the order of the reference pages."""
    gap = gap_at(file.document, position)
    if gap is None:
        return []
    if file.document.format is Format.YAML:
        gap = gap._replace(path=_below_container(gap.path))
    return list(_values(file, gap) if gap.is_value else _keys(file, gap))


def _below_container(path: tuple[str, ...]) -> tuple[str, ...]:
    """Return the part of a path that is in the config: a YAML file contains it in a block."""
    known = (path[start:] for start in range(len(path)) if find(path[start:]) is not None)
    return next(known, ())


def _keys(file: OpenFile, gap: Gap) -> Iterator[Completion]:
    owners, parent = (DSConfig,), None
    if gap.path:
        parent = find(gap.path)
        if parent is None or not parent.is_block:
            return
        owners = blocks_of(parent.shape, file.type_at(KeyPath(gap.path).pointer))
    block = value_at(file.document.value, gap.path, default=None)
    present = set(block) if is_block(block) else set[str]()
    version = file.program.version
    for name in live_names(owners, parent):
        key = named(owners, parent)[name]
        if name == key.name and name not in present and key.read_at(version):
            yield _key(key, file, gap)


def _key(key: Key, file: OpenFile, gap: Gap) -> Completion:
    quote = "" if file.document.format is Format.YAML else '"'
    following = "" if key.is_block else json.dumps(key.default)
    written = f"{quote}{key.name}{quote}: {following}".rstrip()
    return Completion(
        label=key.name,
        kind=CompletionKind.BLOCK if key.is_block else CompletionKind.KEY,
        text=written,
        replaced=len(gap.written) + gap.is_quoted,
        detail=key.expected,
        doc=key.doc,
    )


def _values(file: OpenFile, gap: Gap) -> Iterator[Completion]:
    key = find(gap.path, of_type=file.type_at(KeyPath(gap.path).pointer))
    if key is None or key.is_block:
        return
    for value, detail in _possible(key, file):
        text = json.dumps(value, ensure_ascii=False)
        yield Completion(
            label=text.strip('"'),
            kind=CompletionKind.VALUE,
            text=text,
            replaced=len(gap.written) + gap.is_quoted,
            detail=detail,
            doc="",
        )


def _possible(key: Key, file: OpenFile) -> Iterator[tuple[Any, str]]:
    """Yield the values that a key can have, each once, with a comment."""
    program = file.program
    found: dict[str, tuple[Any, str]] = {}
    if not key.required:
        found[json.dumps(key.default)] = key.default, "default"
    for choice in key.choices or ((True, False) if "true" in key.expected else ()):
        found.setdefault(json.dumps(choice), (choice, ""))
    fate = program.on_auto(key.key_path, {})
    if fate in (AutoHandling.FILLED, AutoHandling.NATIVE):
        found.setdefault(json.dumps(AUTO), (AUTO, f"filled in by {program.name}"))
    yield from found.values()
