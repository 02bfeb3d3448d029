"""Modules that stage 3 has to gather whole."""

from collections.abc import Iterable

from torch import nn


def set_z3_leaf_modules(
    model: nn.Module,
    leaf_module_classes: Iterable[type[nn.Module] | str],
    raise_if_not_found: bool = True,
) -> list[nn.Module]:
    """Return the modules of the given classes (or class names) in ``model``.

    Nothing is set: no hook stands on the modules inside a block of a repeated stack, which is
    gathered as one whatever it holds. An expert that some rank does not use stops no other.
    Raises ValueError where there is no such module.
    """
    wanted = list(leaf_module_classes)
    found = [
        module
        for module in model.modules()
        if type(module).__name__ in wanted
        or any(isinstance(kind, type) and isinstance(module, kind) for kind in wanted)
    ]
    if not found and raise_if_not_found:
        raise ValueError(f"{type(model).__name__} has no module of the classes {wanted}")
    return found


__all__ = ["set_z3_leaf_modules"]
