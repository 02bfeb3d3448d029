"""Modules of which each rank may use other parts: what ``set_z3_leaf_modules`` names."""

from collections.abc import Iterator

from torch import nn

_LEAF = "_dsengine_leaf"


def mark_leaf(module: nn.Module) -> None:
    """Say, before ``initialize``, that ranks may use different parts of ``module``."""
    setattr(module, _LEAF, True)


def leaves(root: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the marked modules below ``root`` with their names."""
    for name, module in root.named_modules():
        if getattr(module, _LEAF, False):
            yield name, module
