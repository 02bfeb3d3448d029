"""Description of a live module as plain data for dsconfig."""

from collections import Counter
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from dsconfig import Architecture, ModelTree, ModuleFact, TensorFact, architecture_of
from dsengine.parameters.names import own_parameters
from dsengine.torch_private.modules import buffer_table, children_of

STACKS = (nn.ModuleList, nn.Sequential)
"""Containers whose children of one class are the layers of a model."""


def describe(module: nn.Module, name: str | None = None) -> ModelTree:
    """Return the tree of ``module``; no tensor is copied or read.

    A block is a child of a ModuleList or Sequential that has parameters and whose class occurs at
    least twice in the container. Blocks inside blocks are not marked.
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
    """Return the repeated blocks of the outermost stacks."""
    blocks: set[nn.Module] = set()

    def search(module: nn.Module) -> None:
        children = list(module.children())
        counts = Counter(type(child) for child in children)
        for child in children:
            repeated = isinstance(module, STACKS) and counts[type(child)] > 1
            if repeated and _is_block(child):
                blocks.add(child)
            else:
                search(child)

    search(root)
    return blocks


def _is_block(module: nn.Module) -> bool:
    """Whether a module has submodules and weights; a Linear in a Sequential does not."""
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
    """Return the class name; subclasses of classes with a special role get that role's name."""
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
    """Return the full shape of a tensor that may be partitioned or packed into 4 bits."""
    state = getattr(tensor, "quant_state", None)
    shape = tensor.shape if state is None else state.shape
    return tuple(getattr(tensor, "ds_shape", shape))


def _elements(tensor: Tensor) -> int:
    return torch.Size(_shape(tensor)).numel()


def _architecture(module: nn.Module) -> Architecture | None:
    """Return the sizes in the model's ``config`` (a mapping or a Hugging Face config)."""
    config = getattr(module, "config", None)
    as_dict = getattr(config, "to_dict", None)
    config = as_dict() if as_dict is not None else config
    if not isinstance(config, Mapping):
        return None
    try:
        return architecture_of(config)
    except ValueError:
        return None  # another kind of config: sizes unknown


def _hidden_size(module: nn.Module) -> int | None:
    """Return the hidden size from the model's config, as Hugging Face's integration does."""
    config = getattr(module, "config", None)
    text = getattr(config, "text_config", None)
    for source in (config, text):
        size = getattr(source, "hidden_size", None)
        if isinstance(size, int):
            return size
    sizes = getattr(config, "hidden_sizes", None)
    return max(sizes) if isinstance(sizes, list | tuple) and sizes else None
