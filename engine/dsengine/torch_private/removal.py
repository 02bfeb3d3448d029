"""Copying a module under ``fully_shard``, and removing ``fully_shard`` from it.

Public: neither. ``deepcopy`` of a unit raises, and ``fully_shard`` has no undo.
"""

from collections import OrderedDict
from collections.abc import Iterable
from copy import deepcopy
from functools import partial
from typing import Any, cast
from weakref import ReferenceType, ref

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._composable_state import _module_state_mapping
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from dsengine.torch_private.modules import parameter_table, replace_parameter_table

_MARKS = (
    "__composable_api",
    "__deepcopy__",
    "__reduce_ex__",
    "_is_fsdp_managed",
    "_fsdp_use_orig",
    "_distribute_module_applied",
)
"""Prefixes of the attributes with which torch and this file mark a distributed module."""


def make_copyable(root: nn.Module) -> None:
    """Make ``copy.deepcopy`` of ``root`` or a submodule return an ordinary module, and pickle it.

    ``fully_shard`` forbids copies, because copied shards would share its bookkeeping, and its
    classes cannot be pickled. Full parameters have nothing to share: the copy, for EMA, evaluation
    or export, has its own full parameters and no hooks. Copying a module with parameters of which
    this rank has a part raises RuntimeError.
    """
    for module in root.modules():
        module.__dict__["__deepcopy__"] = partial(_ordinary_copy, module)
        module.__dict__["__reduce_ex__"] = partial(_reduced, module)


def _reduced(module: nn.Module, _: Any) -> Any:
    """Return what pickle needs. From protocol 2 on, it refuses an object of another class."""
    return _ordinary_copy(module, {}).__reduce_ex__(0)


def _ordinary_kind(module: nn.Module) -> type[nn.Module]:
    """Return the module's class before ``fully_shard``."""
    kind = type(module)
    if issubclass(kind, FSDPModule):
        kind = next(base for base in kind.__mro__[1:] if not issubclass(base, FSDPModule))
        kind = kind if issubclass(kind, nn.Module) else nn.Module
    return kind


def _ordinary_copy(module: nn.Module, memo: dict[int, Any]) -> nn.Module:
    kind = _ordinary_kind(module)
    copied = kind.__new__(kind)
    memo[id(module)] = copied
    for key, value in module.__dict__.items():
        if key == "_parameters":
            copied.__dict__[key] = {n: _copied_parameter(p, memo) for n, p in value.items()}
        elif "_hooks" in key and isinstance(value, dict):
            copied.__dict__[key] = OrderedDict()
        elif isinstance(value, dist.ProcessGroup):
            copied.__dict__[key] = value
        elif not key.startswith(_MARKS):
            copied.__dict__[key] = deepcopy(value, memo)
    return copied


def _copied_parameter(parameter: Tensor | None, memo: dict[int, Any]) -> nn.Parameter | None:
    if parameter is None:
        return None
    if id(parameter) not in memo:
        with torch.no_grad():
            full = parameter.detach().clone()
        if isinstance(full, DTensor):
            raise RuntimeError(
                "cannot copy a model of which each rank has only a part: on all ranks, copy it "
                "inside `with zero.GatheredParameters(list(model.parameters())):`"
            )
        memo[id(parameter)] = nn.Parameter(full, parameter.requires_grad)
    return memo[id(parameter)]


def generate_alone(root: nn.Module) -> None:
    """Let models of transformers in ``root`` generate on one rank without the others.

    Their ``generate`` waits for all ranks if torch has marked the model as one of ``fully_shard``.
    """
    for module in root.modules():
        if hasattr(type(module), "generate"):
            module.__dict__["_is_fsdp_managed_module"] = False


Hook = tuple[ReferenceType[nn.Module], str, int]
"""A module hook: module, attribute of the hook table, key in it."""


def hooks_below(root: nn.Module) -> set[Hook]:
    """Return every hook of ``root`` and its submodules."""
    return {
        (ref(module), table, key)
        for module in root.modules()
        for table, hooks in vars(module).items()
        if "_hooks" in table and isinstance(hooks, dict)
        for key in cast(Iterable[int], hooks)
    }


def remove_fully_shard(root: nn.Module, hooks: Iterable[Hook]) -> None:
    """Remove ``fully_shard`` from ``root`` and its submodules, and remove ``hooks``.

    ``fully_shard`` has no undo. Its parameters, sharded or gathered, stay on the modules; the
    caller replaces them.
    """
    for reference, table, key in hooks:
        if (module := reference()) is not None:
            vars(module)[table].pop(key, None)
    for module in root.modules():
        module.__class__ = _ordinary_kind(module)
        _module_state_mapping.pop(module, None)
        for mark in [name for name in vars(module) if name.startswith(_MARKS)]:
            del vars(module)[mark]
        replace_parameter_table(module, dict(parameter_table(module)))
