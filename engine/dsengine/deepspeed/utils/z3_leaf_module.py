"""Modules of which each rank may use other parts, as the experts of a layer.

Every parameter in a marked module is reduced on all ranks at stages 1 to 3, as zeros where a rank
has not used it; one that no rank has used is then updated with a gradient of zero. At stage 3 it
is gathered with the block in which it lies. Marks are read by ``initialize``.
"""

from collections.abc import Callable, Iterable

from torch import nn

from dsengine.sharding.leaves import is_leaf, is_of_class, mark_leaf

z3_leaf_module = is_leaf


def set_z3_leaf_module(model: nn.Module, flag: bool) -> None:
    """Mark one module, or take its mark away."""
    mark_leaf(model, flag)


def get_z3_leaf_modules(model: nn.Module) -> list[nn.Module]:
    """Return the marked modules in ``model``."""
    return [module for module in model.modules() if is_leaf(module)]


def set_z3_leaf_modules(
    model: nn.Module,
    leaf_module_classes: Iterable[type[nn.Module] | str],
    raise_if_not_found: bool = True,
) -> list[nn.Module]:
    """Mark and return the modules of the given classes (or class names).

    Raises ValueError where there is none.
    """
    return _mark_classes(model, leaf_module_classes, True, raise_if_not_found)


def unset_z3_leaf_modules(
    model: nn.Module,
    leaf_module_classes: Iterable[type[nn.Module] | str],
    raise_if_not_found: bool = True,
) -> list[nn.Module]:
    """Take the marks away from modules of the given classes; return them."""
    return _mark_classes(model, leaf_module_classes, False, raise_if_not_found)


def set_z3_leaf_modules_by_name(
    model: nn.Module,
    module_names: Iterable[str],
    flag: bool = True,
    raise_if_not_found: bool = True,
) -> tuple[list[nn.Module], list[str]]:
    """Mark the modules with these full names; return them, and the names of which there is none."""
    return _mark_named(model, module_names, str.__eq__, flag, raise_if_not_found)


def set_z3_leaf_modules_by_suffix(
    model: nn.Module,
    module_name_suffixes: Iterable[str],
    flag: bool = True,
    raise_if_not_found: bool = True,
) -> tuple[list[nn.Module], list[str]]:
    """Mark the modules whose full names end so; return them, and the endings of none."""
    return _mark_named(model, module_name_suffixes, str.endswith, flag, raise_if_not_found)


def _mark_classes(
    model: nn.Module, classes: Iterable[type[nn.Module] | str], flag: bool, insist: bool
) -> list[nn.Module]:
    wanted = list(classes)
    found = [
        module
        for module in model.modules()
        if any(
            is_of_class(module, kind) if isinstance(kind, str) else isinstance(module, kind)
            for kind in wanted
        )
    ]
    if not found and insist:
        raise ValueError(f"{type(model).__name__} has no module of the classes {wanted}")
    for module in found:
        mark_leaf(module, flag)
    return found


def _mark_named(
    model: nn.Module,
    wanted: Iterable[str],
    matches: Callable[[str, str], bool],
    flag: bool,
    insist: bool,
) -> tuple[list[nn.Module], list[str]]:
    found: dict[nn.Module, None] = {}
    missing: list[str] = []
    for each in wanted:
        own = [module for name, module in model.named_modules() if matches(name, each)]
        found |= dict.fromkeys(own)
        if not own:
            missing.append(each)
    if missing and insist:
        raise ValueError(f"{type(model).__name__} has no modules named {missing}")
    for module in found:
        mark_leaf(module, flag)
    return list(found), missing


__all__ = [
    "get_z3_leaf_modules",
    "set_z3_leaf_module",
    "set_z3_leaf_modules",
    "set_z3_leaf_modules_by_name",
    "set_z3_leaf_modules_by_suffix",
    "unset_z3_leaf_modules",
    "z3_leaf_module",
]
