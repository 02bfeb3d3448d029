"""Leaf modules: modules whose submodules may be used differently on each rank.

[Note: collectives must match across ranks]
A unit's gradients are reduced in one collective over the parameters that have one. If ranks used
different experts, the shards would not match; torch (since 2.13) can substitute zeros for missing
gradients. This costs nothing if no gradient is missing, so units that contain a list of modules do
it by default, and leaves named by a script or the config do it or are refused. Units that ranks use
differently are gathered and reduced in different orders, and one of equal size is then taken for
another: so a leaf that the plan divides into several units becomes one.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import nn
from torch.distributed.fsdp import FSDPModule

from dsconfig import PlannedUnit
from dsengine.torch_private.units import sharded_parameters

_LEAF = "_z3_leaf"
"""DeepSpeed's marker attribute, which other programs read."""


def mark_leaf(module: nn.Module, flag: bool = True) -> None:
    """Mark ``module`` as a leaf, before ``initialize``."""
    setattr(module, _LEAF, flag)


def is_leaf(module: nn.Module) -> bool:
    """Whether ``module`` is marked."""
    return bool(getattr(module, _LEAF, False))


def is_of_class(module: nn.Module, name: str) -> bool:
    """Whether ``name`` is the class name of the module, or its full path."""
    kind = type(module)
    return name in (kind.__name__, f"{kind.__module__}.{kind.__qualname__}")


def mark_configured(root: nn.Module, settings: Mapping[str, Any]) -> None:
    """Mark the modules named in ``zero_optimization.leaf_module``, by class, name or suffix."""
    classes, names, suffixes = (
        [given] if isinstance(given := settings.get(key) or (), str) else list(given)
        for key in ("classes", "names", "name_suffixes")
    )
    for name, module in root.named_modules():
        of_class = any(is_of_class(module, kind) for kind in classes)
        if of_class or name in names or (name and name.endswith(tuple(suffixes))):
            mark_leaf(module)


def leaves(root: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the marked modules below ``root`` with their names."""
    for name, module in root.named_modules():
        if is_leaf(module):
            yield name, module


def leaves_across_units(
    root: nn.Module, units: Sequence[PlannedUnit]
) -> Iterator[tuple[nn.Module, bool]]:
    """Yield the outermost leaves that the plan would reduce in several units.

    With each, whether one of these units is gathered around its use.
    """
    unit_of = {name: index for index, unit in enumerate(units) for name in unit.modules}
    inside: set[nn.Module] = set()
    for name, leaf in leaves(root):
        if leaf in inside:
            continue
        indices = {
            _unit_index(below, unit_of)
            for below, module in leaf.named_modules(prefix=name)
            if next(module.parameters(recurse=False), None) is not None
        }
        if len(indices) > 1:
            inside.update(leaf.modules())
            yield leaf, any(index is not None and units[index].gather for index in indices)


def _unit_index(name: str, unit_of: Mapping[str, int]) -> int | None:
    """Return the index of the unit that contains the named module, None if there is none."""
    while name and name not in unit_of:
        name = name.rpartition(".")[0]
    return unit_of.get(name)


def reduce_unused_of_leaves(root: nn.Module, units: Sequence[FSDPModule]) -> None:
    """Make the units of leaves reduce every parameter.

    Raises ValueError if torch cannot.
    """
    for _, leaf in leaves(root):
        for unit in _units_of(leaf, units):
            if not _reduce_unused(unit):
                raise ValueError(
                    "set_z3_leaf_modules and leaf_module require torch 2.13 at stages 1 to 3: "
                    "upgrade torch or use stage 0"
                )


def reduce_unused_of_lists(root: nn.Module, units: Sequence[FSDPModule]) -> None:
    """Make each unit that contains a full list of modules reduce every parameter, if torch can."""
    for module in root.modules():
        if isinstance(module, nn.ModuleList | nn.ModuleDict) and len(module) > 1:
            own = _units_of(module, units)
            if len(own) == 1:
                _reduce_unused(own[0])


def _units_of(module: nn.Module, units: Sequence[FSDPModule]) -> list[FSDPModule]:
    """Return the units that contain parameters of ``module``."""
    below = {id(submodule) for submodule in module.modules()}
    return [
        unit
        for unit in units
        if any(id(record.owner) in below for record in sharded_parameters(unit))
    ]


def _reduce_unused(unit: FSDPModule) -> bool:
    """Enable zeros for missing gradients; return whether torch supports it."""
    switch = getattr(unit, "set_reduce_scatter_unused_params", None)
    if switch is not None:
        switch(True, recurse=False)
    return switch is not None
