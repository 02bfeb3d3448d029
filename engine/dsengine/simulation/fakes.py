"""What stands for the real thing in a dry run: the values of tensors, and a model's forward."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from dsconfig import ModelTree, ModuleFact
from dsengine.observation.memory import tensors_in
from dsengine.torch_private import READ_OF_A_VALUE, is_fake


class OperationObserver(TorchDispatchMode):
    """Every operation of a dry run: reads of values are answered, of the others all is told.

    ``told`` take the tensors that an operation was given and those that it has made. A value is
    0.5: norms are finite, no step is skipped, and one less it can divide. Whole numbers are 0,
    with which the reducer of DistributedDataParallel takes what has no gradient here for unused
    everywhere.
    """

    def __init__(self, told: Sequence[Callable[[list[Tensor], list[Tensor]], None]] = ()) -> None:
        super().__init__()
        self._told = told

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is READ_OF_A_VALUE and is_fake(args[0]):
            return 0.5 if args[0].dtype.is_floating_point else 0
        result = func(*args, **(kwargs or {}))
        given, made = [*tensors_in((args, kwargs))], [*tensors_in(result)]
        for tell in self._told:
            tell(given, made)
        return result


def stand_in(tree: ModelTree) -> nn.Module:
    """A module with this tree's modules and parameters. Raises ValueError without a layout."""
    if tree.root is None:
        raise ValueError(
            f"{tree.name}: the tensors of this model are not known; a dry run needs --model"
        )
    return _Module(tree.root, {})


class _Module(nn.Module):
    """One module of the tree; its forward adds up its own parameters, then runs its children."""

    def __init__(self, fact: ModuleFact, shared: dict[str, nn.Parameter]) -> None:
        super().__init__()
        prefix = f"{fact.name}." if fact.name else ""
        for tensor in fact.parameters:
            storage = tensor.storage or prefix + tensor.name
            if storage not in shared:
                values = torch.empty(tensor.shape, dtype=getattr(torch, tensor.dtype))
                shared[storage] = nn.Parameter(values, tensor.trainable)
            self.register_parameter(tensor.name, shared[storage])
        for child in fact.children:
            self.add_module(child.name.rpartition(".")[2], _Module(child, shared))

    def forward(self, hidden: Tensor) -> Tensor:
        for parameter in self.parameters(recurse=False):
            hidden = hidden + parameter.sum()
        for child in self.children():
            hidden = child(hidden)
        return hidden.sum() if hidden.dim() else hidden
