"""A live module as plain data, for the compiler: shapes, dtypes, shared storage, blocks."""

from collections import Counter
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from dsconfig import Architecture, ModelTree, ModuleFact, TensorFact, architecture_of
from dsengine.parameters.names import own_parameters
from dsengine.torch_private import buffer_table, children_of

STACKS = (nn.ModuleList, nn.Sequential)
"""Containers whose children, when alike, are the layers of a model."""


def describe(module: nn.Module, name: str | None = None) -> ModelTree:
    """Return what the compiler needs to know of ``module``; no tensor is copied or read.

    A block is a child of a ModuleList or Sequential that has parameters and of whose class
    the container holds at least two. Blocks inside blocks are not marked again.
    """
    root = _fact(module, "", _blocks(module))
    parameters = {id(parameter): parameter for parameter in module.parameters()}
    counts = [_elements(parameter) for parameter in parameters.values()]
    return ModelTree(
        name=name or type(module).__name__,
        parameters=sum(counts),
        trainable=sum(_elements(p) for p in parameters.values() if p.requires_grad),
        root=root,
        largest_tensor=max(counts, default=0),
        largest_module=max(
            (sum(_elements(p) for p in m.parameters(recurse=False)) for m in module.modules()),
            default=0,
        ),
        largest_block=max((fact.elements for fact in root.walk() if fact.repeated), default=None),
        hidden_size=_hidden_size(module),
        architecture=_architecture(module),
    )


def _blocks(root: nn.Module) -> set[nn.Module]:
    """The repeated blocks of the outermost stacks."""
    found: set[nn.Module] = set()

    def search(module: nn.Module) -> None:
        children = list(module.children())
        alike = Counter(type(child) for child in children)
        for child in children:
            repeated = isinstance(module, STACKS) and alike[type(child)] > 1
            if repeated and _is_block(child):
                found.add(child)
            else:
                search(child)

    search(root)
    return found


def _is_block(module: nn.Module) -> bool:
    """A layer is made of modules and has weights; a lone Linear in a Sequential is a leaf."""
    return next(module.children(), None) is not None and any(True for _ in module.parameters())


def _fact(module: nn.Module, name: str, blocks: set[nn.Module]) -> ModuleFact:
    prefix = f"{name}." if name else ""
    return ModuleFact(
        name=name,
        type=_type_name(module),
        parameters=_tensors(dict(own_parameters(module))),
        buffers=_tensors(buffer_table(module)),
        children=tuple(
            _fact(child, prefix + child_name, blocks) for child_name, child in children_of(module)
        ),
        repeated=module in blocks,
    )


def _type_name(module: nn.Module) -> str:
    """The class name; subclasses of classes with a special role carry that role's name."""
    for role in (nn.MultiheadAttention, nn.ModuleList, nn.ModuleDict):
        if isinstance(module, role):
            return role.__name__
    return type(module).__name__


def _tensors(tensors: Mapping[str, Tensor | None]) -> tuple[TensorFact, ...]:
    return tuple(
        TensorFact(
            name=name,
            shape=_shape(tensor),
            dtype=str(tensor.dtype).removeprefix("torch."),
            trainable=tensor.requires_grad,
            storage=f"{id(tensor):x}",
        )
        for name, tensor in tensors.items()
        if tensor is not None
    )


def _shape(tensor: Tensor) -> tuple[int, ...]:
    """The whole shape, also where only a part of the tensor is here."""
    return tuple(getattr(tensor, "ds_shape", tensor.shape))


def _elements(tensor: Tensor) -> int:
    return torch.Size(_shape(tensor)).numel()


def _architecture(module: nn.Module) -> Architecture | None:
    """The sizes a model's own ``config`` gives (a mapping, or Hugging Face's object)."""
    config = getattr(module, "config", None)
    as_dict = getattr(config, "to_dict", None)
    config = as_dict() if as_dict is not None else config
    if not isinstance(config, Mapping):
        return None
    try:
        return architecture_of(config)
    except ValueError:
        return None  # a config of another kind: the sizes stay unknown


def _hidden_size(module: nn.Module) -> int | None:
    """As Hugging Face's integration finds it: from the model's own config."""
    config = getattr(module, "config", None)
    text = getattr(config, "text_config", None)
    for holder in (config, text):
        size = getattr(holder, "hidden_size", None)
        if isinstance(size, int):
            return size
    sizes = getattr(config, "hidden_sizes", None)
    return max(sizes) if isinstance(sizes, list | tuple) and sizes else None
