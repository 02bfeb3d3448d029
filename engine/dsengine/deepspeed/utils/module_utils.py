"""Parts of a module by their dotted name."""

from typing import Any


def recursive_getattr(model: Any, module_name: str) -> Any:
    """Return what ``module_name`` (``encoder.layers.0``) leads to from ``model``."""
    found = model
    for name in module_name.split("."):
        found = getattr(found, name)
    return found


def recursive_setattr(model: Any, module_name: str, module: Any) -> None:
    """Put ``module`` in the place that ``module_name`` leads to from ``model``."""
    parent, _, name = module_name.rpartition(".")
    setattr(recursive_getattr(model, parent) if parent else model, name, module)


__all__ = ["recursive_getattr", "recursive_setattr"]
