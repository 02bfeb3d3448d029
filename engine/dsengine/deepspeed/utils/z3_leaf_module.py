"""Leaf modules: modules of which each rank may use different parts, such as experts.

Every parameter in a leaf module is reduced on all ranks at stages 1 to 3, with zeros from ranks
that did not use it; a parameter that no rank used is updated with a zero gradient. At stage 3 it is
gathered with the block that contains it. ``initialize`` reads the marks.
"""

from collections.abc import Callable, Iterable

from torch import nn

from dsengine.sharding.leaves import is_leaf, is_of_class, mark_leaf

z3_leaf_module = is_leaf


def set_z3_leaf_module(model: nn.Module, flag: bool) -> None:
    """Mark or unmark one module."""
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

    Raises ValueError if there are none.
    """
    return _mark_classes(model, leaf_module_classes, True, raise_if_not_found)


def unset_z3_leaf_modules(
    model: nn.Module,
    leaf_module_classes: Iterable[type[nn.Module] | str],
    raise_if_not_found: bool = True,
) -> list[nn.Module]:
    """Unmark and return the modules of the given classes."""
    return _mark_classes(model, leaf_module_classes, False, raise_if_not_found)


def set_z3_leaf_modules_by_name(
    model: nn.Module,
    module_names: Iterable[str],
    flag: bool = True,
    raise_if_not_found: bool = True,
) -> tuple[list[nn.Module], list[str]]:
    """Mark the modules with these full names; return them, and the names not found."""
    return _mark_named(model, module_names, str.__eq__, flag, raise_if_not_found)


def set_z3_leaf_modules_by_suffix(
    model: nn.Module,
    module_name_suffixes: Iterable[str],
    flag: bool = True,
    raise_if_not_found: bool = True,
) -> tuple[list[nn.Module], list[str]]:
    """Mark the modules whose full names have these suffixes; return them, and those not found."""
    return _mark_named(model, module_name_suffixes, str.endswith, flag, raise_if_not_found)


def _mark_classes(
    model: nn.Module, classes: Iterable[type[nn.Module] | str], flag: bool, required: bool
) -> list[nn.Module]:
    kinds = list(classes)
    modules = [
        module
        for module in model.modules()
        if any(
            is_of_class(module, kind) if isinstance(kind, str) else isinstance(module, kind)
            for kind in kinds
        )
    ]
    if not modules and required:
        raise ValueError(f"{type(model).__name__} has no module of the classes {kinds}")
    for module in modules:
        mark_leaf(module, flag)
    return modules


def _mark_named(
    model: nn.Module,
    patterns: Iterable[str],
    matches: Callable[[str, str], bool],
    flag: bool,
    required: bool,
) -> tuple[list[nn.Module], list[str]]:
    modules: dict[nn.Module, None] = {}
    missing: list[str] = []
    for pattern in patterns:
        matching = [module for name, module in model.named_modules() if matches(name, pattern)]
        modules |= dict.fromkeys(matching)
        if not matching:
            missing.append(pattern)
    if missing and required:
        raise ValueError(f"{type(model).__name__} has no modules named {missing}")
    for module in modules:
        mark_leaf(module, flag)
    return list(modules), missing


__all__ = [
    "get_z3_leaf_modules",
    "set_z3_leaf_module",
    "set_z3_leaf_modules",
    "set_z3_leaf_modules_by_name",
    "set_z3_leaf_modules_by_suffix",
    "unset_z3_leaf_modules",
    "z3_leaf_module",
]
