"""Parameters by name, as the optimizer knows them: shards where the model is sharded."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from dsengine.torch_private import (
    WRAPPERS,
    is_gathered,
    parameter_table,
    persistent_buffers,
    sharded_parameters_of,
    units_of,
)


def clean_name(name: str) -> str:
    """Return ``name`` without the path elements of wrappers."""
    return ".".join(part for part in name.split(".") if part not in WRAPPERS)


def own_parameters(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield the parameters of ``module`` itself, each under each of its names."""
    for name, parameter in parameter_table(module).items():  # named_parameters can be overridden
        if parameter is not None:
            yield name, parameter


def named_shards(
    root: nn.Module, *, remove_duplicate: bool = True
) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield (name, parameter) with the sharded parameter wherever one exists.

    ``module.named_parameters()`` yields whole tensors while a unit is gathered, and always so
    below stage 3; the optimizer holds the shards. A tied weight comes once, under its first
    name, unless ``remove_duplicate`` is False.
    """
    shards = {
        (id(owner), name): each.shard
        for each in sharded_parameters_of(units_of(root))
        for owner, name in each.owners
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
    """Gather again, on leaving, every unit that was whole on entering.

    The shards are written to inside; a unit kept whole at rest would otherwise go on with
    the weights it had before.
    """
    whole = [unit for unit in units_of(root) if is_gathered(unit)]
    for unit in whole:
        unit.reshard()
    try:
        yield
    finally:
        for unit in whole:
            unit.unshard()
