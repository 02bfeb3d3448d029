"""Units with modules in them of which each rank may use other parts.

[Note: what ranks have to do alike]
A unit's gradients are reduced in one collective, of those parameters that have one. Where ranks
have used different experts the pieces would not belong together; torch (since 2.13) can put a
zero in the place of each gradient that is not there. That costs nothing where every gradient is
there, so units that hold a list of modules do it unasked, and those that a script or the config
names as leaves do it or are refused. A gather is alike when the list lies in one unit: a leaf that
would be gathered in several parts becomes a unit of its own.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import nn
from torch.distributed.fsdp import FSDPModule

from dsconfig import PlannedUnit
from dsengine.torch_private import sharded_parameters

_LEAF = "_z3_leaf"
"""DeepSpeed's name for the mark, which other programs read."""


def mark_leaf(module: nn.Module, flag: bool = True) -> None:
    """Say, before ``initialize``, that ranks may use different parts of ``module``."""
    setattr(module, _LEAF, flag)


def is_leaf(module: nn.Module) -> bool:
    """Whether ``module`` is marked."""
    return bool(getattr(module, _LEAF, False))


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
        if is_leaf(module):
            yield name, module


def leaves_in_parts(root: nn.Module, units: Sequence[PlannedUnit]) -> list[nn.Module]:
    """The outermost leaves that the plan would gather in parts: each has to be a unit by itself."""
    unit_of = {name: index for index, unit in enumerate(units) for name in unit.modules}
    inside: set[nn.Module] = set()
    found: list[nn.Module] = []
    for name, leaf in leaves(root):
        if leaf in inside:
            continue
        owners = {
            owner
            for below, module in leaf.named_modules(prefix=name)
            if next(module.parameters(recurse=False), None) is not None
            if (owner := _owner(below, unit_of)) is None or units[owner].gather
        }
        if len(owners) > 1:
            found.append(leaf)
            inside.update(leaf.modules())
    return found


def _owner(name: str, unit_of: Mapping[str, int]) -> int | None:
    """The unit that the module of this name is in, None where the plan names none."""
    while name and name not in unit_of:
        name = name.rpartition(".")[0]
    return unit_of.get(name)


def reduce_unused_of_leaves(root: nn.Module, units: Sequence[FSDPModule]) -> None:
    """Let the units of leaves reduce every parameter.

    Raises ValueError when torch has no zeros.
    """
    for _, leaf in leaves(root):
        for unit in _units_of(leaf, units):
            if not _reduce_unused(unit):
                raise ValueError(
                    "set_z3_leaf_modules and leaf_module need torch 2.13 at stages 1 to 3: or use "
                    "stage 0"
                )


def reduce_unused_of_lists(root: nn.Module, units: Sequence[FSDPModule]) -> None:
    """Let each unit that holds a whole list of modules reduce every parameter, where torch can."""
    for each in root.modules():
        if isinstance(each, nn.ModuleList | nn.ModuleDict) and len(each) > 1:
            own = _units_of(each, units)
            if len(own) == 1:
                _reduce_unused(own[0])


def _units_of(module: nn.Module, units: Sequence[FSDPModule]) -> list[FSDPModule]:
    """The units that parameters of ``module`` belong to."""
    below = {id(each) for each in module.modules()}
    return [
        unit for unit in units if any(id(each.owner) in below for each in sharded_parameters(unit))
    ]


def _reduce_unused(unit: FSDPModule) -> bool:
    """Whether this torch can."""
    switch = getattr(unit, "set_reduce_scatter_unused_params", None)
    if switch is not None:
        switch(True, recurse=False)
    return switch is not None
