"""The stages of a pipeline: trees of their layers, joined into the tree of a model and back."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from dsconfig.facts.model import ModelTree, ModuleFact, TensorFact, with_counts


def join_stages(
    tree: ModelTree, roots: Sequence[ModuleFact], layers: Sequence[Sequence[str]]
) -> ModelTree:
    """Return ``tree`` with the modules of all stages, each with the names of its ``layers``.

    A layer of several stages is tied and counted once. Layers of one class that have submodules are
    the model's blocks.
    """
    root = _named_by_stage(roots[0], 0)
    for stage, other in enumerate(roots[1:], 1):
        root = _merged(root, _named_by_stage(other, stage))
    kinds = Counter(child.type for child in root.children)
    children = tuple(
        replace(child, repeated=child.repeated or (bool(child.children) and kinds[child.type] > 1))
        for child in root.children
    )
    joined = replace(tree, stages=tuple(map(tuple, layers)))
    return with_counts(joined, replace(root, children=children))


def tree_of_stage(tree: ModelTree, stage: int) -> ModelTree:
    """Return the tree of one stage of a joined tree."""
    assert tree.root is not None
    return with_counts(replace(tree, stages=()), _selected(tree.root, tree.stages[stage]))


def _named_by_stage(module: ModuleFact, stage: int) -> ModuleFact:
    """Return the module with storages that no other stage has: theirs are of other processes."""

    def named(tensors: tuple[TensorFact, ...]) -> tuple[TensorFact, ...]:
        return tuple(replace(each, storage=f"{stage}:{each.storage}") for each in tensors)

    return replace(
        module,
        parameters=named(module.parameters),
        buffers=named(module.buffers),
        children=tuple(_named_by_stage(child, stage) for child in module.children),
    )


def _merged(first: ModuleFact, other: ModuleFact) -> ModuleFact:
    """Return a module with the children of both; what both have is that of the first."""
    own = {child.name: child for child in first.children}
    for child in other.children:
        own[child.name] = _merged(own[child.name], child) if child.name in own else child
    return replace(first, children=tuple(own.values()))


def _selected(module: ModuleFact, layers: Sequence[str]) -> ModuleFact:
    """Return the module with only those descendants that belong to the layers."""
    return replace(
        module,
        children=tuple(
            child if child.name in layers else _selected(child, layers)
            for child in module.children
            if any(name == child.name or name.startswith(f"{child.name}.") for name in layers)
        ),
    )
