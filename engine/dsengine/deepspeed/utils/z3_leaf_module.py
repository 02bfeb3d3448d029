"""Modules of which each rank may use other parts, as the experts of a layer."""

from collections.abc import Iterable

from torch import nn

from dsengine.sharding.leaves import is_of_class, mark_leaf


def set_z3_leaf_modules(
    model: nn.Module,
    leaf_module_classes: Iterable[type[nn.Module] | str],
    raise_if_not_found: bool = True,
) -> list[nn.Module]:
    """Mark and return the modules of the given classes (or class names), before ``initialize``.

    Every parameter in them is reduced on all ranks at stages 1 to 3, as zeros where a rank has
    not used it; one that no rank has used is then updated with a gradient of zero. At stage 3
    they are gathered with the block in which they lie. Raises ValueError where there is none.
    """
    wanted = list(leaf_module_classes)
    found = [
        module
        for module in model.modules()
        if any(
            is_of_class(module, kind) if isinstance(kind, str) else isinstance(module, kind)
            for kind in wanted
        )
    ]
    if not found and raise_if_not_found:
        raise ValueError(f"{type(model).__name__} has no module of the classes {wanted}")
    for module in found:
        mark_leaf(module)
    return found


__all__ = ["set_z3_leaf_modules"]
