"""Paths in plain data: lookup by path and pointer; limits on depth and size."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeGuard, cast

from dsconfig.schema.paths import ROOT, KeyPath
from dsconfig.schema.paths import escape as escape

ABSENT: Any = object()
"""Returned by :func:`value_at` if there is no value."""


def is_block(value: object) -> TypeGuard[dict[str, Any]]:
    """Return whether a value is a mapping (with string keys)."""
    return isinstance(value, dict)


def is_list(value: object) -> TypeGuard[list[Any]]:
    """Return whether a value is a list."""
    return isinstance(value, list)


def split(pointer: str) -> KeyPath:
    """Return the path of a pointer. Raises ValueError if it is not a JSON Pointer."""
    if pointer and not pointer.startswith("/"):
        raise ValueError(f"{pointer!r} is not a JSON Pointer: it must start with '/'")
    return KeyPath.parse(pointer)


def dotted(pointer: str) -> str:
    """Return the dotted path, ``zero_optimization.stage``; ``(root)`` for the root."""
    return split(pointer).dotted or "(root)"


def lookup(value: Any, pointer: str, default: Any = None) -> Any:
    """Return the value at a pointer, or ``default``."""
    return value_at(value, split(pointer), default)


def value_at(value: Any, path: tuple[str, ...], default: Any = ABSENT) -> Any:
    """Return the value at a path, or ``default``."""
    for part in path:
        if type(value) is dict:  # nearly always, and the checks below are slow
            block = cast("dict[str, Any]", value)
            if part not in block:
                return default
            value = block[part]
        elif isinstance(value, (dict, Mapping)):
            mapping = cast("Mapping[str, Any]", value)
            if part not in mapping:
                return default
            value = mapping[part]
        elif isinstance(value, list):
            items = cast("list[Any]", value)
            index = index_of(part, items)
            if index is None:
                return default
            value = items[index]
        else:
            return default
    return value


def index_of(part: str, items: Sequence[Any]) -> int | None:
    """Return the index that a part of a path denotes, or None if the list has no such item."""
    # Python refuses to parse thousands of digits.
    if not part.isdecimal() or len(part) > len(str(len(items))):
        return None
    index = int(part)
    return index if index < len(items) else None


def walk(block: Mapping[str, Any], above: KeyPath = ROOT) -> Iterator[tuple[KeyPath, Any]]:
    """Yield the path and the value of every key, outer keys first."""
    for name, value in block.items():
        yield (path := above / name), value
        if is_block(value):
            yield from walk(value, path)


def put(block: dict[str, Any], path: KeyPath, value: Any) -> None:
    """Set the value at a path; missing blocks are created."""
    for name in path.parent:
        block = block.setdefault(name, {})
    block[path.name] = value


def contains(value: object, leaf: str) -> bool:
    """Return whether a value, or one in a dict at any depth, is this string."""
    if is_block(value):
        return any(contains(each, leaf) for each in value.values())
    return value == leaf


def copied(value: Any) -> Any:
    """Return a deep copy of dicts and lists."""
    if is_block(value):
        return {key: copied(child) for key, child in value.items()}
    return [copied(child) for child in value] if is_list(value) else value


MAX_DEPTH = 400
"""Maximum nesting depth; ``hjson`` and ``json`` stop at Python's recursion limit."""


def is_too_deep(value: Any) -> bool:
    """Return whether plain data is deeper than ``MAX_DEPTH`` levels or contains itself."""
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        # Visit shared values once per level.
        shared = {id(child): child for parent in level for child in _children(parent)}
        level = [child for child in shared.values() if _is_container(child)]
        if not level:
            return False
    return True


MAX_VALUES = 1_000_000
"""Maximum number of values of a config, counting shared values repeatedly."""


def is_too_large(value: Any) -> bool:
    """Return whether plain data (at most ``MAX_DEPTH`` deep) exceeds ``MAX_VALUES``."""
    sizes: dict[int, int] = {}

    def size(part: Any) -> int:
        if not _is_container(part):
            return 1
        if id(part) not in sizes:
            sizes[id(part)] = 1 + sum(map(size, _children(part)))
        return sizes[id(part)]

    return size(value) > MAX_VALUES


def _is_container(value: Any) -> bool:
    return isinstance(value, Mapping | list | tuple)


def _children(parent: Any) -> Iterable[Any]:
    if isinstance(parent, Mapping):
        return cast(Mapping[Any, Any], parent).values()
    return cast(list[Any], parent) if isinstance(parent, list | tuple) else ()
