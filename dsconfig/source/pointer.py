"""Paths in plain data: JSON Pointers (RFC 6901), the dotted paths people type, and depth."""

from collections.abc import Iterable, Mapping
from typing import Any, TypeGuard, cast

ABSENT: Any = object()
"""What :func:`value_at` answers where nothing is."""


def is_block(value: object) -> TypeGuard[dict[str, Any]]:
    """Whether a value is a mapping; the keys of a config are texts."""
    return isinstance(value, dict)


def is_list(value: object) -> TypeGuard[list[Any]]:
    """Whether a value is a list, of whatever."""
    return isinstance(value, list)


def join(*parts: str | int) -> str:
    """The pointer of the given path: ``join("a", 0)`` is ``/a/0``."""
    return "".join(f"/{escape(str(part))}" for part in parts)


def escape(part: str) -> str:
    return part.replace("~", "~0").replace("/", "~1")


def split(pointer: str) -> tuple[str, ...]:
    """The path of a pointer. Raises ValueError when it is not one."""
    if not pointer:
        return ()
    if not pointer.startswith("/"):
        raise ValueError(f"{pointer!r} is not a JSON Pointer: it must start with '/'")
    return tuple(part.replace("~1", "/").replace("~0", "~") for part in pointer[1:].split("/"))


def dotted(pointer: str) -> str:
    """The path as people write it: ``zero_optimization.stage``; ``(root)`` for the root."""
    return ".".join(split(pointer)) or "(root)"


def from_dotted(path: str) -> str:
    """The pointer of a dotted path; a pointer is returned as it is."""
    return path if not path or path.startswith("/") else join(*path.split("."))


def lookup(value: Any, pointer: str, default: Any = None) -> Any:
    """The value at a pointer, or ``default`` where nothing is."""
    return value_at(value, split(pointer), default)


def value_at(value: Any, path: str | Iterable[str], default: Any = ABSENT) -> Any:
    """The value at a path, dotted or in parts; ``default`` where nothing is."""
    for part in path.split(".") if isinstance(path, str) else path:
        if isinstance(value, (dict, Mapping)):  # a dict is told at once
            held = cast("Mapping[str, Any]", value)
            if part not in held:
                return default
            value = held[part]
        elif isinstance(value, list):
            items = cast("list[Any]", value)
            if not part.isdecimal() or int(part) >= len(items):
                return default
            value = items[int(part)]
        else:
            return default
    return value


def copied(value: Any) -> Any:
    """Plain data, copied deep: dicts and lists anew, scalars shared."""
    if is_block(value):
        return {key: copied(child) for key, child in value.items()}
    return [copied(child) for child in value] if is_list(value) else value


MAX_DEPTH = 400
"""Levels of nesting that are read. ``hjson`` and ``json`` give up at Python's own limit."""


def is_too_deep(value: Any) -> bool:
    """Whether plain data has more than ``MAX_DEPTH`` levels, as what contains itself always has."""
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        # Parts that several places share are looked at once for each level.
        shared = {id(part): part for holder in level for part in _parts(holder)}
        level = [part for part in shared.values() if _is_container(part)]
        if not level:
            return False
    return True


MAX_VALUES = 1_000_000
"""Values of one config, those that several places share counted at each."""


def is_too_large(value: Any) -> bool:
    """Whether plain data, no deeper than ``MAX_DEPTH``, has more than ``MAX_VALUES`` values."""
    sizes: dict[int, int] = {}

    def size(part: Any) -> int:
        if not _is_container(part):
            return 1
        if id(part) not in sizes:
            sizes[id(part)] = 1 + sum(map(size, _parts(part)))
        return sizes[id(part)]

    return size(value) > MAX_VALUES


_NAMES = {True: "true", False: "false", None: "null"}


def to_plain(value: Any) -> Any:
    """Plain data as JSON would have it: ``{1: ...}`` is ``{"1": ...}``, an array is a list.

    What is so already is returned itself.
    """
    if isinstance(value, Mapping):
        items = cast(Mapping[Any, Any], value)
        named = {_name(key): to_plain(child) for key, child in items.items()}
        kept = all(key in items and items[key] is child for key, child in named.items())
        return items if kept and len(named) == len(items) else named
    if isinstance(value, list | tuple):
        parts = cast(list[Any], value)
        made = [to_plain(part) for part in parts]
        kept = all(part is child for part, child in zip(parts, made, strict=True))
        return parts if kept else made
    # Comparing an array with anything gives an array, which is neither true nor false.
    if getattr(value, "ndim", 0):
        return value.tolist() if value.size <= MAX_VALUES else str(value)
    return value


def _name(key: Any) -> str:
    if isinstance(key, str):
        return key
    return _NAMES[key] if key is None or isinstance(key, bool) else str(key)


def _is_container(value: Any) -> bool:
    return isinstance(value, Mapping | list | tuple)


def _parts(holder: Any) -> Iterable[Any]:
    if isinstance(holder, Mapping):
        return cast(Mapping[Any, Any], holder).values()
    return cast(list[Any], holder) if isinstance(holder, list | tuple) else ()
