"""Number of processes and precision from an accelerate config file."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from dsconfig.facts.inputs import FactError
from dsconfig.source import plugin_settings
from dsconfig.source.plain import shown

ARGUMENT = "accelerate_config"


class Launch(NamedTuple):
    world_size: int | None
    nodes: int | None
    precision: str | None


def launch(settings: Mapping[str, Any]) -> Launch:
    """Return the launch settings of the file. Raises FactError for values of the wrong type."""
    mixed = plugin_settings.mixed_precision(settings)
    # YAML 1.1 reads a bare ``no`` as false, and accelerate writes it bare.
    mixed = "no" if mixed is False else mixed
    chosen = mixed.lower() if isinstance(mixed, str) else mixed
    if chosen is not None and chosen not in plugin_settings.MIXED:
        raise FactError(ARGUMENT, f"mixed_precision is {shown(mixed)}; write no, fp16, bf16 or fp8")
    return Launch(
        world_size=_count(settings, "num_processes"),
        nodes=_machines(settings),
        precision=None if chosen is None else plugin_settings.PRECISIONS.get(chosen, "fp32"),
    )


def _machines(settings: Mapping[str, Any]) -> int | None:
    """Return the number of machines; as in the launcher, anything not above 1 means 1."""
    value = settings.get("num_machines")
    is_one = isinstance(value, int | float) and not isinstance(value, bool) and not value > 1
    return 1 if is_one else _count(settings, "num_machines")


def _count(settings: Mapping[str, Any], name: str) -> int | None:
    value = settings.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise FactError(ARGUMENT, f"{name} is {shown(value)}; it must be a positive integer")
    return value
