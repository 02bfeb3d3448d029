"""The tables of a module: parameters, buffers and children under each of their names."""

import copy
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor, nn


class MoveAwareModule(nn.Module):
    """A module with a hook for ``to``, ``cuda``, ``half`` ...

    Public hooks exist for calls and state dicts only.
    """

    def moving_tensors(self) -> AbstractContextManager[None]:
        """Return the context in which all tensors of the module are moved or cast."""
        raise NotImplementedError

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        with self.moving_tensors():
            super()._apply(fn, recurse)
        return self


WRAPPERS = ("_orig_mod", "_checkpoint_wrapped_module")
"""Path elements that torch.compile and activation checkpointing add to parameter names."""


def persistent_buffers(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the buffers of ``module`` itself that belong to its state dict."""
    for name, buffer in module._buffers.items():
        if buffer is not None and name not in module._non_persistent_buffers_set:
            yield name, buffer


def children_of(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield each child under each of its names; ``named_children`` skips repetitions."""
    for name, child in module._modules.items():
        if child is not None:
            yield name, child


def parameter_table(module: nn.Module) -> dict[str, Any]:
    """Return the dict in which ``module.weight`` is looked up; reading it runs no hook.

    Writing to it runs neither registration hooks of zero.Init nor a class's ``__setattr__``.
    """
    return module._parameters


def buffer_table(module: nn.Module) -> dict[str, Tensor | None]:
    """Return the dict of ``module``'s own buffers; setting an attribute may register a new one."""
    return module._buffers


def replace_parameter_table(module: nn.Module, table: dict[str, Any]) -> None:
    module.__dict__["_parameters"] = table


def rebuilt(
    module: nn.Module,
    parameters: Mapping[str, nn.Parameter],
    buffers: Mapping[str, Tensor],
    children: Mapping[str, nn.Module],
) -> Any:
    """Return a module like ``module`` with other tensors and children, and without hooks.

    Other attributes are the same objects, but lists, sets and dicts are copied. ``copy.copy`` would
    call the constructor of a class that ``fully_shard`` has made.
    """
    new = object.__new__(type(module))
    for name, value in vars(module).items():
        if isinstance(value, OrderedDict) and name.endswith("_hooks"):
            value = OrderedDict[Any, Any]()
        vars(new)[name] = copy.copy(value) if isinstance(value, list | set | dict) else value
    vars(new)["_parameters"] = {**dict.fromkeys(module._parameters), **parameters}
    vars(new)["_buffers"] = {**module._buffers, **buffers}
    vars(new)["_modules"] = {**dict.fromkeys(module._modules), **children}
    return new
