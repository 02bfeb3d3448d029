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


def fill(config: dict[str, Any], path: str, wanted: Any) -> bool:
    """Write where "auto" stands; False where something else does, or nothing."""
    place, name = node(config, path)
    if place is None:
        return False
    with about():
        if place.get(name) != AUTO:
            return False
    place[name] = wanted
    return True


def stage_of(config: dict[str, Any]) -> Any:
    """The stage both integrations note when they are handed a config (-1 without one).

    At stages 2 and 3 they look at the offload devices as well, which is where a block that
    is a text stops them.
    """
    stage = value(config, "zero_optimization.stage", -1)
    if stage in (2, 3):
        value(config, "zero_optimization.offload_optimizer.device")
        value(config, "zero_optimization.offload_param.device")
    return stage
