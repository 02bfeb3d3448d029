"""``--set path.to.key=value``: override single keys of a document."""

import json
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from typing import Any

from dsconfig.schema.paths import KeyPath
from dsconfig.source import plain
from dsconfig.source.document import Document, Span
from dsconfig.source.pointer import (
    MAX_DEPTH,
    index_of,
    is_block,
    is_list,
    is_too_deep,
    split,
)

MAX_SHOWN = 60
"""Characters of an override in messages."""


def with_overrides(document: Document, overrides: Sequence[str]) -> Document:
    """Return the document with each ``path=value`` applied; other keys keep their positions.

    A value is parsed as JSON if possible, else taken as a string. Missing objects are created.
    Raises ValueError for an override without ``=`` or path, or whose path crosses a non-object.
    """
    if not overrides:
        return document
    value = deepcopy(document.value)
    parsed: list[tuple[str, Any]] = []
    for override in overrides:
        path, equals, text = override.partition("=")
        if not equals or not path.strip():
            raise ValueError(f"--set {_short(override)}: write it as path.to.key=value")
        pointer = KeyPath.parse(path.strip()).pointer
        try:
            new = parse_value(text)
        except ValueError as error:
            raise ValueError(f"--set {_short(override)}: {error}") from None
        parsed.append((pointer, new))
        _put(value, pointer, new, _short(override))
        if is_too_deep(value):
            raise ValueError(f"--set {_short(override)}: more than {MAX_DEPTH} levels deep")
    applied = (*document.overrides, *parsed)
    replaced = with_values(document, parsed)
    return replaced._replace(overrides=applied)


def with_values(document: Document, values: Iterable[tuple[str, Any]]) -> Document:
    """Return the document with these values at their pointers, which then have no position.

    Raises ValueError for a pointer that crosses a non-object.
    """
    value = deepcopy(document.value)
    spans: Mapping[str, Span] = document.spans
    for pointer, new in values:
        _put(value, pointer, deepcopy(new), pointer)
        spans = {
            at: span
            for at, span in spans.items()
            if at != pointer and not at.startswith(f"{pointer}/")
        }
    return document._replace(value=value, spans=spans)


def apply(config: dict[str, Any], overrides: Iterable[tuple[str, Any]]) -> None:
    """Apply parsed overrides to a config in place. Raises ValueError as ``with_overrides``."""
    for pointer, new in overrides:
        _put(config, pointer, deepcopy(new), pointer)


def parse_value(text: str) -> Any:
    """Parse ``true``, ``5e8``, ``[0.9, 0.95]``, ``"text"`` as JSON, anything else as a string.

    Raises ValueError for an integer outside the range of a float.
    """
    try:
        value = json.loads(text)
    except (json.JSONDecodeError, RecursionError):
        return text
    except ValueError:
        raise ValueError(plain.TOO_MANY_DIGITS) from None
    if not is_too_deep(value) and plain.without_large_integers(value)[1]:
        raise ValueError("the number is too large; the largest float is 1.8e308")
    return value


def _put(root: Any, pointer: str, new: Any, override: str) -> None:
    *way, last = split(pointer)
    here = root
    for index, part in enumerate(way):
        place = index_of(part, here) if is_list(here) else None
        if is_list(here) and place is not None:
            here = here[place]
        elif is_block(here):
            here = here.setdefault(part, {})
        else:
            raise _not_an_object(override, way[:index])
    place = index_of(last, here) if is_list(here) else None
    if is_list(here) and place is not None:
        here[place] = new
    elif is_block(here):
        here[last] = new
    else:
        raise _not_an_object(override, way)


def _short(override: str) -> str:
    return override if len(override) <= MAX_SHOWN else f"{override[:MAX_SHOWN]}..."


def _not_an_object(override: str, path: Sequence[str]) -> ValueError:
    return ValueError(f"--set {override}: {'.'.join(path) or 'the config'} is not an object")
