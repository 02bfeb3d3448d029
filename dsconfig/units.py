"""Sharding units: which modules are gathered, reduced and freed together.

Pure: a model tree and a cap in, units out. Used by the engine, the estimator and the plan, so that
all three use the same units.

[Note: how modules become units] PyTorch's ``fully_shard([m1, m2])`` takes every parameter below
``m1`` and ``m2`` that no earlier call has taken, and gathers them when one of the given modules is
called. Three consequences:

- inner units come before the units around them, so the tuple is in the order to shard in;
- a module that is never called (ParameterList, ModuleList, the output projection that
  MultiheadAttention reads itself) cannot carry a unit: its parameters go to the nearest
  module above that is called;
- a shared parameter must not be in two calls, so all modules with it share a unit.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from dsconfig.facts.model import ModelTree, ModuleFact, TensorFact
from dsconfig.runtimes.effective import Zero

UNCALLED = frozenset({"ModuleList", "ModuleDict", "ParameterList", "ParameterDict"})
"""Containers without a forward: their hooks never run."""
ATOMIC = frozenset({"MultiheadAttention"})
"""Modules that read their children's weights instead of calling them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """Modules sharded together. ``elements`` counts parameters, shared storage once."""

    modules: tuple[str, ...]
    elements: int
    parameters: tuple[str, ...]
    """Full names of the parameters it owns (a tied weight belongs to one unit only)."""


def cap_of(zero: Zero, tree: ModelTree) -> int:
    """Return the maximum elements that leaves outside blocks are merged to.

    Stage 3: a unit exists twice while it is gathered, hence half of ``max_live_parameters``, but at
    least the largest leaf. Below it: a quarter of the model at most, so that reduction can overlap
    with backward in small models too.
    """
    if zero.stage == 3:
        live = max(zero.max_live_parameters // 2, _largest_leaf(tree))
        return max(1, min(zero.reduce_bucket_size, live))
    return max(1, min(zero.reduce_bucket_size, tree.parameters // 4))


def units(tree: ModelTree, cap: int) -> tuple[Unit, ...]:
    """Divide the model into units, in the order in which they have to be sharded.

    Every parameter is in exactly one unit. Empty if only counts are known (``tree.root`` is None).
    Raises ValueError if ``cap`` is not positive.
    """
    if cap < 1:
        raise ValueError(
            f"the cap of a sharding unit must be a positive number of elements, not {cap}"
        )
    if tree.root is None:
        return ()
    drafts = _merged(_tied(list(_drafts(tree.root, cap))), cap)
    return tuple(
        Unit(
            modules=tuple(draft.modules),
            elements=draft.elements,
            parameters=tuple(_unique(draft.tensors)),
        )
        for draft in drafts
    )


def order_of_use(tree: ModelTree, divided: Sequence[Unit]) -> list[int]:
    """Return unit indices by the registration order of their first module, the usual order of
    forward."""
    if tree.root is None:
        return list(range(len(divided)))
    position = {module.name: place for place, module in enumerate(tree.root.walk())}
    return sorted(
        range(len(divided)),
        key=lambda index: min(position[name] for name in divided[index].modules),
    )


@dataclass(slots=True)
class _UnitDraft:
    """Modules with the parameters they would take if sharded now.

    ``alone`` drafts are never merged with their neighbors; ``tensors`` are by full name.
    """

    modules: list[str]
    tensors: dict[str, TensorFact] = field(default_factory=dict[str, TensorFact])
    alone: bool = False

    @property
    def storages(self) -> set[str]:
        return {tensor.storage or name for name, tensor in self.tensors.items()}

    @property
    def elements(self) -> int:
        return sum(tensor.elements for tensor in _unique(self.tensors).values())


def _largest_leaf(tree: ModelTree) -> int:
    if tree.largest_module is not None:
        return tree.largest_module
    if tree.root is None:
        return tree.largest_tensor or 0
    modules = tree.root.walk()
    return max(sum(tensor.elements for tensor in module.parameters) for module in modules)


def _full_name(module: ModuleFact, tensor: TensorFact) -> str:
    return f"{module.name}.{tensor.name}" if module.name else tensor.name


def _below(module: ModuleFact) -> dict[str, TensorFact]:
    return {
        _full_name(each, tensor): tensor for each in module.walk() for tensor in each.parameters
    }


def _unique(tensors: Mapping[str, TensorFact]) -> dict[str, TensorFact]:
    """Return the first of the tensors that share a storage."""
    first: dict[str, str] = {}
    for name, tensor in tensors.items():
        first.setdefault(tensor.storage or name, name)
    return {name: tensors[name] for name in first.values()}


def _drafts(root: ModuleFact, cap: int) -> Iterator[_UnitDraft]:
    """Yield the parts of the model, inner ones first; the root takes the rest."""
    left: dict[str, TensorFact] = {}
    for child in root.children:
        yield from _outside_blocks(child, cap, left)
    left.update({tensor.name: tensor for tensor in root.parameters})
    if left:
        yield _UnitDraft([root.name], left, alone=True)


def _outside_blocks(
    module: ModuleFact, cap: int, upward: dict[str, TensorFact]
) -> Iterator[_UnitDraft]:
    """Yield drafts of a module outside every block; ``upward`` collects what its
    parent must take."""
    if module.repeated and module.type not in UNCALLED:
        yield from _block(module, cap)
        return
    if _is_one_unit(module, cap):
        tensors = _below(module)
        if module.type in UNCALLED:
            upward.update(tensors)
        elif tensors:
            yield _UnitDraft([module.name], tensors)
        return
    left: dict[str, TensorFact] = {}
    for child in module.children:
        yield from _outside_blocks(child, cap, left)
    left.update({_full_name(module, tensor): tensor for tensor in module.parameters})
    if module.type in UNCALLED:
        upward.update(left)
    elif left:
        yield _UnitDraft([module.name], left, alone=True)


def _is_one_unit(module: ModuleFact, cap: int) -> bool:
    """Return whether a module outside the blocks is taken with everything below it."""
    if not module.children or module.type in ATOMIC:
        return True
    if not module.parameters or any(below.repeated for below in module.walk()):
        return False
    return module.elements <= cap


def _block(block: ModuleFact, cap: int) -> Iterator[_UnitDraft]:
    """Yield one block; leaves in it above the cap are separate units."""
    tensors = _below(block)
    for leaf in _called_leaves(block):
        if leaf is not block and leaf.elements > cap:
            own = _below(leaf)
            yield _UnitDraft([leaf.name], own, alone=True)
            for name in own:
                del tensors[name]
    if tensors:
        yield _UnitDraft([block.name], tensors, alone=True)


def _called_leaves(module: ModuleFact) -> Iterator[ModuleFact]:
    if module.type in UNCALLED and not module.children:
        return
    if not module.children or module.type in ATOMIC:
        yield module
        return
    for child in module.children:
        yield from _called_leaves(child)


def _tied(drafts: list[_UnitDraft]) -> list[_UnitDraft]:
    """Join drafts that share a storage, at the position of the first of them."""
    draft_of: dict[str, int] = {}
    joined: list[_UnitDraft | None] = []
    for draft in drafts:
        earlier = sorted({draft_of[storage] for storage in draft.storages if storage in draft_of})
        if not earlier:
            joined.append(draft)
            draft_of.update(dict.fromkeys(draft.storages, len(joined) - 1))
            continue
        parts = [part for index in earlier if (part := joined[index]) is not None] + [draft]
        for index in earlier:
            joined[index] = None
        tensors = {name: tensor for part in parts for name, tensor in part.tensors.items()}
        merged = _UnitDraft([name for part in parts for name in part.modules], tensors, alone=True)
        joined[earlier[0]] = merged
        draft_of.update(dict.fromkeys(merged.storages, earlier[0]))
    left = [draft for draft in joined if draft is not None]
    return left if len(left) == len(drafts) else _inner_first(left)


def _inner_first(drafts: list[_UnitDraft]) -> list[_UnitDraft]:
    """Restore the order that joining changed: inner modules before outer ones."""
    draft_of = {name: index for index, draft in enumerate(drafts) for name in draft.modules}
    inside: dict[int, list[int]] = {}
    for index, draft in enumerate(drafts):
        for around in _ancestors(draft.modules):
            outer = draft_of.get(around, index)
            if outer != index:
                inside.setdefault(outer, []).append(index)
    done: dict[int, _UnitDraft] = {}
    entered: set[int] = set()

    def place(index: int) -> None:
        if index in entered:
            return
        entered.add(index)
        for inner in inside.get(index, ()):
            place(inner)
        done[index] = drafts[index]

    for index in range(len(drafts)):
        place(index)
    return list(done.values())


def _ancestors(modules: list[str]) -> Iterator[str]:
    """Yield the full names of all modules around the given ones."""
    for name in modules:
        while name:
            name = name.rpartition(".")[0]
            yield name


def _merged(drafts: list[_UnitDraft], cap: int) -> Iterator[_UnitDraft]:
    """Merge neighboring leaves up to the cap.

    Leaves on both sides of a stack of blocks are not merged: together they would be unsharded from
    the first layer to the last.
    """
    run: _UnitDraft | None = None
    for draft in drafts:
        if run is not None and not draft.alone and run.elements + draft.elements <= cap:
            run = _UnitDraft(run.modules + draft.modules, run.tensors | draft.tensors)
            continue
        if run is not None:
            yield run
        run = None if draft.alone else draft
        if draft.alone:
            yield draft
    if run is not None:
        yield run
