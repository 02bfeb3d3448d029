"""From an architecture to a ModelTree with its counts."""

from dataclasses import replace

from dsconfig.facts import architectures
from dsconfig.facts.model import Architecture, ModelTree, ModuleFact


def from_architecture(
    name: str, sizes: Architecture, *, trained_in: str | None = None, assumed: tuple[str, ...] = ()
) -> ModelTree | None:
    """The tree of a known family, None for the others. Everything is counted from its tensors."""
    root = architectures.tree(sizes)
    if root is None:
        return None
    bare = ModelTree(
        name=name,
        parameters=0,
        trainable=0,
        root=root,
        architecture=sizes,
        hidden_size=sizes.hidden_size,
        trained_in=trained_in,
        assumed=assumed,
    )
    return counted(bare, root)


def counted(tree: ModelTree, root: ModuleFact) -> ModelTree:
    """``tree`` with every count taken from ``root`` (elements, shared storage once)."""
    tensors = list(root.unique_parameters())
    own = (sum(tensor.elements for tensor in module.parameters) for module in root.walk())
    blocks = (module.elements for module in root.walk() if module.repeated)
    return replace(
        tree,
        root=root,
        parameters=sum(tensor.elements for tensor in tensors),
        trainable=sum(tensor.elements for tensor in tensors if tensor.trainable),
        largest_tensor=max((tensor.elements for tensor in tensors), default=None),
        largest_module=max(own, default=None),
        largest_block=max(blocks, default=None),
    )
