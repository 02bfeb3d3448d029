"""Plain copies of modules whose parameters are whole at rest: for EMA, evaluation, export."""

from collections import OrderedDict
from copy import deepcopy
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

NOT_COPIED = ("__composable_api", "__deepcopy__", "_is_fsdp_managed", "_fsdp_use_orig")
"""Beginnings of the entries by which ``fully_shard`` and this file mark a module."""


def make_copyable(root: nn.Module) -> None:
    """Let ``copy.deepcopy`` of ``root``, or of a module below it, give an ordinary module.

    ``fully_shard`` forbids copies, because a copy of shards would share its bookkeeping. Here
    there is nothing to share: the copy has its own whole parameters and no hooks.
    """
    for module in root.modules():
        module.__dict__["__deepcopy__"] = partial(_copy, module)


def _copy(module: nn.Module, memo: dict[int, Any]) -> nn.Module:
    kind = type(module)
    if issubclass(kind, FSDPModule):
        kind = next(base for base in kind.__mro__[1:] if not issubclass(base, FSDPModule))
        kind = kind if issubclass(kind, nn.Module) else nn.Module
    copied = kind.__new__(kind)
    memo[id(module)] = copied
    for key, value in module.__dict__.items():
        if key == "_parameters":
            copied.__dict__[key] = {n: _parameter(p, memo) for n, p in value.items()}
        elif "_hooks" in key and isinstance(value, dict):
            copied.__dict__[key] = OrderedDict()
        elif not key.startswith(NOT_COPIED):
            copied.__dict__[key] = deepcopy(value, memo)
    return copied


def _parameter(parameter: Tensor | None, memo: dict[int, Any]) -> nn.Parameter | None:
    if parameter is None:
        return None
    if id(parameter) not in memo:
        with torch.no_grad():
            memo[id(parameter)] = nn.Parameter(parameter.detach().clone(), parameter.requires_grad)
    return memo[id(parameter)]
