"""Dotted look-up as both Hugging Face integrations do it.

Where a block on the way is a text, the bare AttributeError of their code is the answer.
"""

from typing import Any

from dsconfig.runtimes.base import AUTO
from dsconfig.runtimes.behaviour.outcome import about


def node(config: dict[str, Any], path: str) -> tuple[dict[str, Any] | None, str]:
    """The block a key stands in (None where one on the way is absent), and the key's name."""
    *blocks, name = path.split(".")
    place: Any = config
    for block in blocks:
        with about():
            place = place.get(block)
        if place is None:
            return None, name
    return place, name


def value(config: dict[str, Any], path: str, default: Any = None) -> Any:
    place, name = node(config, path)
    if place is None:
        return default
    with about():
        return place.get(name, default)


def is_auto(config: dict[str, Any], path: str) -> bool:
    found = value(config, path)
    return found is not None and found == AUTO


def is_on(config: dict[str, Any], path: str) -> bool:
    found = value(config, path)
    return False if found is None else bool(found)
