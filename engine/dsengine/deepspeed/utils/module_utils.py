"""Submodules by dotted name."""

from typing import Any


def recursive_getattr(model: Any, module_name: str) -> Any:
    """Return the attribute ``module_name`` (``encoder.layers.0``) of ``model``."""
    value = model
    for name in module_name.split("."):
        value = getattr(value, name)
    return value


def recursive_setattr(model: Any, module_name: str, module: Any) -> None:
    """Set the attribute ``module_name`` of ``model`` to ``module``."""
    parent, _, name = module_name.rpartition(".")
    setattr(recursive_getattr(model, parent) if parent else model, name, module)


__all__ = ["recursive_getattr", "recursive_setattr"]
