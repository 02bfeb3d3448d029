"""Modules of which each rank may use other parts: what ``set_z3_leaf_modules`` names."""

from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn

_LEAF = "_dsengine_leaf"


def mark_leaf(module: nn.Module) -> None:
    """Say, before ``initialize``, that ranks may use different parts of ``module``."""
    setattr(module, _LEAF, True)


def is_of_class(module: nn.Module, name: str) -> bool:
    """Whether ``name`` is the name of the module's class, or its full path."""
    kind = type(module)
    return name in (kind.__name__, f"{kind.__module__}.{kind.__qualname__}")


def mark_configured(root: nn.Module, config: Mapping[str, Any]) -> None:
    """Mark what ``zero_optimization.leaf_module`` of a ds_config names, if anything."""
    block = config.get("zero_optimization")
    settings = block.get("leaf_module") if isinstance(block, Mapping) else None
    if not settings:
        return
    classes, names, suffixes = (
        [given] if isinstance(given := settings.get(key) or (), str) else list(given)
        for key in ("classes", "names", "name_suffixes")
    )
    for name, module in root.named_modules():
        of_class = any(is_of_class(module, each) for each in classes)
        if of_class or name in names or (name and name.endswith(tuple(suffixes))):
            mark_leaf(module)


def leaves(root: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the marked modules below ``root`` with their names."""
    for name, module in root.named_modules():
        if getattr(module, _LEAF, False):
            yield name, module
