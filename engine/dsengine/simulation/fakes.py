"""Fakes for a dry run: values read from tensors, and a model built from a tree."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import dsconfig
from dsconfig import ModelTree, ModuleFact
from dsengine.observation.memory import tensors_in
from dsengine.torch_private.dry_runs import is_fake
from dsengine.torch_private.tensors import READ_OF_A_VALUE


class OperationObserver(TorchDispatchMode):
    """Answers reads of values in a dry run and reports all other operators.

    ``observers`` take the tensors an operator was given and those it returned. A read returns 0.5:
    norms are finite, no step is skipped, and one minus it can be divided by. Integers are 0, with
    which DistributedDataParallel's reducer treats parameters without a gradient here as unused
    everywhere.
    """

    def __init__(
        self, observers: Sequence[Callable[[list[Tensor], list[Tensor]], None]] = ()
    ) -> None:
        super().__init__()
        self._observers = observers

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is READ_OF_A_VALUE and is_fake(args[0]):
            return 0.5 if args[0].dtype.is_floating_point else 0
        result = func(*args, **(kwargs or {}))
        given, made = [*tensors_in((args, kwargs))], [*tensors_in(result)]
        for observe in self._observers:
            observe(given, made)
        return result


def stand_in_module(tree: ModelTree, base_weights: str | None = None) -> nn.Module:
    """Return a module with this tree's modules and parameters.

    ``base_weights``: 4bit or 8bit, how bitsandbytes has packed the frozen linear layers of blocks.
    Raises ValueError if the tree has no layout.
    """
    if tree.root is None:
        raise ValueError(
            f"{tree.name}: the tensors of this model are unknown; a dry run requires --model"
        )
    packed = dsconfig.packed_layout(tree, base_weights) if base_weights is not None else {}
    return _Module(tree.root, {}, packed)


class _Scales:
    """Replaces the ``quant_state`` of a 4-bit weight."""

    nested = False

    def __init__(self, shape: Sequence[int], nbytes: int) -> None:
        self.shape = shape
        self.absmax = torch.empty(nbytes, dtype=torch.uint8)
        self.code = torch.empty(16)

    def to(self, device: torch.device) -> None:
        self.absmax, self.code = self.absmax.to(device), self.code.to(device)


def _packed(shape: Sequence[int], nbytes: int, constant_bytes: int) -> nn.Parameter:
    """Return a weight as bitsandbytes packs it."""
    is_8_bit = nbytes == torch.Size(shape).numel()
    values = torch.empty(tuple(shape) if is_8_bit else (nbytes, 1), dtype=torch.uint8)
    parameter: Any = nn.Parameter(values, requires_grad=False)
    if is_8_bit:
        parameter.has_fp16_weights, parameter.CB = False, values
        parameter.SCB = torch.empty(constant_bytes // 4)
    else:
        parameter.quant_state = _Scales(shape, constant_bytes)
    return parameter


class _Module(nn.Module):
    """One module of the tree; forward sums its own parameters, then runs its children."""

    attends = False
    """Its samples can be divided along the sequence: no token depends on another."""

    def __init__(
        self,
        fact: ModuleFact,
        shared: dict[str, nn.Parameter],
        packed: Mapping[str, tuple[int, int]],
    ) -> None:
        super().__init__()
        prefix = f"{fact.name}." if fact.name else ""
        for tensor in fact.parameters:
            storage = tensor.storage or prefix + tensor.name
            if storage not in shared:
                if prefix + tensor.name in packed:
                    shared[storage] = _packed(tensor.shape, *packed[prefix + tensor.name])
                else:
                    values = torch.empty(tensor.shape, dtype=getattr(torch, tensor.dtype))
                    shared[storage] = nn.Parameter(values, tensor.trainable)
            self.register_parameter(tensor.name, shared[storage])
        for child in fact.children:
            self.add_module(child.name.rpartition(".")[2], _Module(child, shared, packed))

    def forward(self, hidden: Tensor) -> Tensor:
        for parameter in self.parameters(recurse=False):
            hidden = hidden + parameter.sum()
        for child in self.children():
            hidden = child(hidden)
        return hidden.sum() if hidden.dim() else hidden
