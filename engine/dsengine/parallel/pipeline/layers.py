"""Descriptions of layers that only the ranks of their stage build."""

import random
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from dsengine.parallel.pipeline.partition import partition_balanced, partition_uniform


class LayerSpec:
    """The class of a layer and the arguments of its constructor."""

    def __init__(self, typename: type[nn.Module], *module_args: Any, **module_kwargs: Any) -> None:
        if not (isinstance(typename, type) and issubclass(typename, nn.Module)):
            raise RuntimeError(
                f"LayerSpec expects a class of torch.nn.Module, not {typename!r}: pass "
                "the class and its arguments"
            )
        self.typename = typename
        self.module_args = module_args
        self.module_kwargs = module_kwargs

    def __repr__(self) -> str:
        arguments = [*map(repr, self.module_args)]
        arguments += [f"{name}={value!r}" for name, value in self.module_kwargs.items()]
        return f"{self.typename.__name__}({', '.join(arguments)})"

    def build(self, log: bool = False) -> nn.Module:
        """Return a new layer."""
        del log
        return self.typename(*self.module_args, **self.module_kwargs)


class TiedLayerSpec(LayerSpec):
    """A layer whose parameters are those of all others with the same ``key``.

    ``forward_fn``: called with the layer and its inputs in place of its forward.
    ``tied_weight_attr``: accepted, but every parameter of the layer is tied.
    """

    def __init__(
        self,
        key: str,
        typename: type[nn.Module],
        *module_args: Any,
        forward_fn: Callable[[Any, Any], Any] | None = None,
        tied_weight_attr: str | list[str] = "weight",
        **module_kwargs: Any,
    ) -> None:
        super().__init__(typename, *module_args, **module_kwargs)
        self.key = key
        self.forward_fn = forward_fn
        weights = tied_weight_attr
        self.tied_weight_attr = [weights] if isinstance(weights, str) else weights


Layer = LayerSpec | nn.Module | Callable[[Any], Any]
"""A layer, its description, or a function without parameters."""


def boundaries(layers: Sequence[Layer], stages: int, method: str) -> list[int]:
    """Return the first layer of each stage, and the number of layers.

    ``method``: "uniform" divides layers, "parameters" their trained elements, and "type:REGEX"
    those whose class name matches. Raises ValueError for another one, for a pattern without a
    match, and if a stage would be empty.
    """
    kind, _, pattern = method.partition(":")
    if kind.lower() == "uniform":
        found = partition_uniform(len(layers), stages)
    elif kind.lower() == "parameters":
        found = partition_balanced([_trained_elements(layer) for layer in layers], stages)
    elif kind.lower() == "type" and pattern:
        try:
            named = re.compile(pattern, re.IGNORECASE)
        except re.error as error:
            raise ValueError(
                f"partition_method {method!r} is not a regular expression ({error}): escape "
                "special characters, or name a class of the layers"
            ) from None
        matches = [int(named.search(_type_name(layer)) is not None) for layer in layers]
        if not any(matches):
            raise ValueError(
                f"partition_method {method!r} matches no layer: name a class of the layers"
            )
        found = partition_balanced(matches, stages)
    else:
        raise ValueError(
            f"partition_method {method!r} is unknown: use uniform, parameters or type:REGEX"
        )
    if any(first == following for first, following in pairwise(found)):
        raise ValueError(
            f"{len(layers)} layers cannot fill {stages} pipeline stages: use at most "
            f"{max(1, len(layers))} stages"
        )
    return found


def _trained_elements(layer: Layer) -> int:
    """Return the trained elements of a layer; one that is only described is built and dropped."""
    built = layer.build() if isinstance(layer, LayerSpec) else layer
    if not isinstance(built, nn.Module):
        return 0
    return sum(each.numel() for each in built.parameters() if each.requires_grad)


def _type_name(layer: Layer) -> str:
    if isinstance(layer, LayerSpec):
        return layer.typename.__name__
    if isinstance(layer, nn.Module):
        return type(layer).__name__
    return getattr(layer, "__name__", "")


def set_random_seed(seed: int) -> None:
    """Seed the random generators of Python, torch, and NumPy if it is installed."""
    random.seed(seed)
    torch.manual_seed(seed)
    with suppress(ImportError):
        import numpy

        numpy.random.seed(seed % 2**32)
