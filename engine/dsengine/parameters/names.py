"""Named parameters as the optimizer holds them: shards if the model is sharded."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from dsengine.torch_private.modules import WRAPPERS, parameter_table, persistent_buffers
from dsengine.torch_private.units import is_gathered, sharded_parameters_of, units_of


def clean_name(name: str) -> str:
    """Return ``name`` without the path elements of wrappers."""
    return ".".join(part for part in name.split(".") if part not in WRAPPERS)


def own_parameters(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield the parameters of ``module`` itself under each of their names."""
    for name, parameter in parameter_table(module).items():  # named_parameters can be overridden
        if parameter is not None:
            yield name, parameter


def named_shards(
    root: nn.Module, *, remove_duplicate: bool = True
) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield (name, parameter), with the sharded parameter if one exists.

    ``module.named_parameters()`` yields full tensors while a unit is gathered, and always below
    stage 3; the optimizer holds the shards. A tied weight is yielded once, under its first name,
    unless ``remove_duplicate`` is False.
    """
    shards = {
        (id(owner), name): record.shard
        for record in sharded_parameters_of(units_of(root))
        for owner, name in record.owners
    }
    seen: set[int] = set()
    for prefix, module in root.named_modules():
        for name, parameter in own_parameters(module):
            shard = shards.get((id(module), name), parameter)
            if remove_duplicate and id(shard) in seen:
                continue
            seen.add(id(shard))
            yield clean_name(f"{prefix}.{name}" if prefix else name), shard


def named_persistent_buffers(root: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield (name, buffer) for the buffers that belong to the state dict."""
    for prefix, module in root.named_modules():
        for name, buffer in persistent_buffers(module):
            yield clean_name(f"{prefix}.{name}" if prefix else name), buffer


@contextmanager
def units_resharded(root: nn.Module) -> Iterator[None]:
    """Reshard gathered units inside, and gather them again on exit.

    Shards are written inside; a unit that stayed gathered would keep its old weights.
    """
    gathered = [unit for unit in units_of(root) if is_gathered(unit)]
    for unit in gathered:
        unit.reshard()
    try:
        yield
    finally:
        for unit in gathered:
            unit.unshard()
