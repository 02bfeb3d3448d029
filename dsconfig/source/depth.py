"""How deep a config is nested."""

from collections.abc import Iterable, Mapping
from typing import Any, cast

DEEPEST = 400
"""Levels of nesting that are read. ``hjson`` and ``json`` give up at Python's own limit."""


def is_too_deep(value: Any) -> bool:
    """Whether plain data has more than ``DEEPEST`` levels, as what contains itself always has."""
    level: list[Any] = [value]
    for _ in range(DEEPEST):
        # Parts that several places share are looked at once for each level.
        shared = {id(part): part for holder in level for part in _parts(holder)}
        level = [part for part in shared.values() if _is_container(part)]
        if not level:
            return False
    return True


def _is_container(value: Any) -> bool:
    return isinstance(value, Mapping | list | tuple)


def _parts(holder: Any) -> Iterable[Any]:
    if isinstance(holder, Mapping):
        return cast(Mapping[Any, Any], holder).values()
    return cast(list[Any], holder) if isinstance(holder, list | tuple) else ()
