"""Parameters by name, as the optimizer knows them: shards where the model is sharded."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule

_WRAPPERS = ("_orig_mod", "_checkpoint_wrapped_module")
"""Path elements that torch.compile and activation checkpointing put into names."""


def clean_name(name: str) -> str:
    """Return ``name`` without the path elements of wrappers."""
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def parameter_groups(module: FSDPModule) -> list[Any]:
    state = module._get_fsdp_state()
    groups = getattr(state, "_fsdp_param_groups", None)
    if groups is None:  # torch before 2.12 holds at most one
        groups = [state._fsdp_param_group] if state._fsdp_param_group is not None else []
    return groups


def _shards(root: nn.Module) -> dict[tuple[int, str], nn.Parameter]:
    """Map (id of owning module, parameter name in it) to the sharded parameter."""
    found: dict[tuple[int, str], nn.Parameter] = {}
    for module in root.modules():
        if not isinstance(module, FSDPModule):
            continue
        for group in parameter_groups(module):
            for entry in group.fsdp_params:
                info = entry._module_info
                owners = [(info.module, info.param_name)]
                owners += zip(info.shared_modules, info.shared_param_names, strict=True)
                for owner, name in owners:
                    found[id(owner), name] = entry.sharded_param
    return found


def named_shards(
    root: nn.Module, *, remove_duplicate: bool = True
) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield (name, parameter) with the sharded parameter wherever one exists.

    ``module.named_parameters()`` yields whole tensors while a unit is gathered, and always so
    below stage 3; the optimizer holds the shards. A tied weight comes once, under its first
    name, unless ``remove_duplicate`` is False.
    """
    shards = _shards(root)
    seen: set[int] = set()
    for prefix, module in root.named_modules():
        for name, parameter in module._parameters.items():
            if parameter is None:
                continue
            shard = shards.get((id(module), name), parameter)
            if remove_duplicate and id(shard) in seen:
                continue
            seen.add(id(shard))
            yield clean_name(f"{prefix}.{name}" if prefix else name), shard


def named_persistent_buffers(root: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield (name, buffer) for the buffers that belong to the state dict."""
    for prefix, module in root.named_modules():
        for name, buffer in module._buffers.items():
            if buffer is not None and name not in module._non_persistent_buffers_set:
                yield clean_name(f"{prefix}.{name}" if prefix else name), buffer


@contextmanager
def regathered(root: nn.Module) -> Iterator[None]:
    """Gather again, on leaving, every unit that was whole on entering.

    The shards are written to inside; a unit kept whole at rest would otherwise go on with
    the weights it had before.
    """
    whole = [
        module
        for module in root.modules()
        if isinstance(module, FSDPModule)
        and any(group.is_unsharded for group in parameter_groups(module))
    ]
    for module in whole:
        module.reshard()
    try:
        yield
    finally:
        for module in whole:
            module.unshard()
