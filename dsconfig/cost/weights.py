"""The parameter tensors of one rank: those of a model, divided over tensor and expert ranks and
packed."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby

from dsconfig.facts.adapters import LINEAR_TYPES
from dsconfig.facts.base_weights import BaseWeights
from dsconfig.facts.facts import Facts
from dsconfig.facts.model import Architecture, ModelTree
from dsconfig.facts.naming import named
from dsconfig.facts.tensor_plans import EVENLY, Split, split_of
from dsconfig.mesh import UNDIVIDED, Degrees
from dsconfig.runtimes.effective import Effective

OUTSIDE = -1
Size = tuple[int, bool]
"""Elements of a tensor, and whether it belongs to an expert."""


@dataclass(frozen=True, slots=True)
class Weight:
    """One parameter tensor. ``block`` is the index of its block in the stack, or OUTSIDE; weights
    of one ``module`` are gathered together."""

    elements: int
    trainable: bool = True
    block: int = OUTSIDE
    module: int = 0
    rows: int = 1
    """Size of the first dimension, along which ``fully_shard`` divides."""
    linear: bool = False
    """The matrix of a linear layer, which torch's own implementation keeps from forward to
    backward."""
    quantizable: bool = False
    """The matrix of an ``nn.Linear`` or ``Conv1D`` inside a block."""
    quantized: int = 0
    """Elements before quantization; ``elements`` counts its storage in the compute dtype."""
    constant_bytes: int = 0
    """Scales of a quantized weight."""
    expert: bool = False
    """Belongs to the experts of a mixture, which expert parallelism divides."""
    split: Split | None = EVENLY
    """What tensor parallelism divides; None: nothing."""


class Weights(tuple[Weight, ...]):
    """The weights of a model or of a pipeline stage, in registration order, with cached totals."""

    @cached_property
    def trainable(self) -> tuple[Weight, ...]:
        return tuple(weight for weight in self if weight.trainable)

    @cached_property
    def elements(self) -> int:
        return sum(weight.elements for weight in self)

    @cached_property
    def trained(self) -> int:
        return sum(weight.elements for weight in self.trainable)

    @cached_property
    def largest(self) -> int:
        return max((weight.elements for weight in self), default=0)

    @cached_property
    def largest_trained(self) -> int:
        return max((weight.elements for weight in self.trainable), default=0)

    @cached_property
    def expert_elements(self) -> int:
        return sum(weight.elements for weight in self if weight.expert)

    @cached_property
    def expert_trained(self) -> int:
        return sum(weight.elements for weight in self.trainable if weight.expert)

    @cached_property
    def sizes(self) -> "Counter[Size]":
        """Return how many tensors there are of each number of elements."""
        return Counter((weight.elements, weight.expert) for weight in self)

    @cached_property
    def trained_sizes(self) -> "Counter[Size]":
        return Counter((weight.elements, weight.expert) for weight in self.trainable)

    @cached_property
    def largest_quantized(self) -> int:
        return max((weight.quantized for weight in self), default=0)

    @cached_property
    def constant_bytes(self) -> int:
        return sum(weight.constant_bytes for weight in self)

    @cached_property
    def segments(self) -> tuple[tuple[int, list[int]], ...]:
        """Return (block, indices of its weights) in order; weights between blocks as OUTSIDE."""
        return tuple(
            (block, [index for index, _ in group])
            for block, group in groupby(enumerate(self), key=lambda each: each[1].block)
        )


Packing = tuple[BaseWeights, int]
"""Quantization of frozen linear layers, and the bytes of an element of their storage."""


def packing_of(effective: Effective, facts: Facts) -> Packing | None:
    """Return how base weights are packed; None if they are not quantized.

    Raises ValueError if they are trained.
    """
    if facts.base_weights is None or facts.model is None:
        return None
    if facts.model.trainable >= facts.model.parameters:
        raise ValueError(
            f"{named('base_weights', facts.base_weights)}: quantized weights cannot be trained; "
            f"specify {named('lora_rank')} or {named('trainable')}"
        )
    return BaseWeights(facts.base_weights), effective.numerics.precision.bytes


_CACHE: dict[tuple[int, Degrees, Packing | None], tuple[ModelTree, Weights]] = {}


def weights_of(
    model: ModelTree, degrees: Degrees = UNDIVIDED, packing: Packing | None = None
) -> Weights:
    """Return the tensors of a model in registration order, shared storage once, divided over tensor
    ranks and packed.

    Trees are frozen and large: results are cached by identity, so that a search over hundreds of
    configs walks the tree once.
    """
    key = (id(model), degrees, packing)
    found = _CACHE.get(key)
    if found is None or found[0] is not model:
        if len(_CACHE) > 32:
            _CACHE.clear()
        made = _from_tree(model) if model.root is not None else _from_counts(model)
        if degrees.tensor > 1:
            made = [_divided(each, degrees.tensor) for each in made]
        if degrees.expert > 1:
            made = [_of_experts(each, degrees.expert) for each in made]
        if packing is not None:
            made = [_packed(each, *packing) for each in made]
        found = _CACHE[key] = (model, Weights(made))
    return found[1]


def _divided(weight: Weight, degree: int) -> Weight:
    """Return the part of a weight on one of ``degree`` ranks; a layer that the degree does not
    divide stays whole, if it is not refused."""
    if weight.split is None or weight.split.size % degree:
        return weight
    by_rows = weight.split.dimension == 0 and weight.split.size > 0
    rows = weight.rows // degree if by_rows else weight.rows
    return replace(weight, elements=max(1, weight.elements // degree), rows=rows)


def _of_experts(weight: Weight, degree: int) -> Weight:
    """Return the part of an expert tensor on one of ``degree`` ranks; other tensors unchanged."""
    if not weight.expert:
        return weight
    elements, rows = max(1, weight.elements // degree), max(1, weight.rows // degree)
    return replace(weight, elements=elements, rows=rows)


def _packed(weight: Weight, kind: BaseWeights, width: int) -> Weight:
    """Return a frozen linear weight as its packed storage, in elements of ``width`` bytes."""
    if weight.trainable or not weight.quantizable:
        return weight
    stored = -(-kind.packed_bytes(weight.elements) // width)
    return replace(
        weight,
        elements=stored,
        rows=stored,
        quantized=weight.elements,
        constant_bytes=kind.constant_bytes(weight.elements, weight.rows),
    )


def packed_layout(model: ModelTree, base_weights: str) -> dict[str, tuple[int, int]]:
    """Return by parameter name the bytes of each packed weight of a tree, and of its scales."""
    kind = BaseWeights(base_weights)
    return {
        name: (
            kind.packed_bytes(weight.elements),
            kind.constant_bytes(weight.elements, weight.rows),
        )
        for name, weight in _named(model)
        if weight.quantizable and not weight.trainable
    }


EXPERTS = "experts"
"""Name of the module with the routed experts in every family of transformers 5.23."""


def _from_tree(model: ModelTree) -> list[Weight]:
    return [weight for _, weight in _named(model)]


def _named(model: ModelTree) -> Iterator[tuple[str, Weight]]:
    """Yield the name and weight of each tensor of a tree, shared storage once."""
    assert model.root is not None
    family = model.architecture.family if model.architecture is not None else None
    blocks: dict[str, int] = {}
    for module in model.root.walk():
        inside = any(module.name.startswith(f"{name}.") for name in list(blocks)[-1:])
        if module.repeated and not inside:
            blocks[module.name] = len(blocks)
    seen: set[str] = set()
    current = OUTSIDE
    prefix = "\0"
    for place, module in enumerate(model.root.walk()):
        if module.name in blocks:
            current, prefix = blocks[module.name], f"{module.name}."
        elif not module.name.startswith(prefix):
            current, prefix = OUTSIDE, "\0"
        for tensor in module.parameters:
            storage = tensor.storage or f"{module.name}.{tensor.name}"
            if storage not in seen:
                seen.add(storage)
                rows = tensor.shape[0] if tensor.shape else 1
                linear = len(tensor.shape) == 2 and "Embedding" not in module.type
                quantizable = linear and current != OUTSIDE and module.type in LINEAR_TYPES
                name = f"{module.name}.{tensor.name}" if module.name else tensor.name
                yield (
                    name,
                    Weight(
                        tensor.elements,
                        tensor.trainable,
                        current,
                        place,
                        rows,
                        linear,
                        quantizable,
                        expert=EXPERTS in module.name.split("."),
                        split=split_of(module.name, tensor.name, tensor.shape, family),
                    ),
                )


def _matrices(block: int, shape: Architecture | None) -> tuple[list[int], list[int]]:
    """Return the elements of a block's matrices, and of the two tensors of its experts, if any."""
    experts: list[int] = []
    if shape is not None and shape.experts:
        inner = shape.experts * (shape.expert_size or shape.width_of_mlp)
        sizes = [(2 if shape.gated_mlp else 1) * shape.hidden_size * inner]
        sizes.append(shape.hidden_size * inner)
        # Of an average block: some have no experts.
        share = min(shape.mixed_blocks / shape.layers, 0.99 * block / sum(sizes))
        experts = [int(size * share) for size in sizes]
    rest = block - sum(experts)
    matrices = [rest * share // 24 for share in (2, 2, 2, 2, 5, 5)]
    return [*matrices, rest - sum(matrices)], experts


def _from_counts(model: ModelTree) -> list[Weight]:
    """Return embedding, equal blocks of seven matrices, head: only the total is exact."""
    shape = model.architecture
    layers = shape.layers if shape else 32
    table = shape.vocab_size * shape.hidden_size if shape else model.parameters // 100
    outer = min(table, model.parameters // 4)
    block, rest = divmod(model.parameters - 2 * outer, layers)
    matrices, experts = _matrices(block, shape)
    count = (shape.experts if shape else None) or 1
    # If only the trainable total is known: adapters of equal size in every block.
    adapter = model.trainable // layers if model.trainable < model.parameters else 0
    first = max(1, outer + rest - adapter * layers)
    weights = [Weight(first, not adapter, rows=first)]
    for index in range(layers):
        weights += [
            Weight(
                elements,
                not adapter,
                index,
                len(weights) + place,
                elements,
                linear=True,
                quantizable=True,
            )
            for place, elements in enumerate(matrices)
        ]
        # Tensors of all experts together: one module, whose first dimension counts the experts.
        weights += [
            Weight(elements, not adapter, index, len(weights), count, expert=True)
            for elements in experts
        ]
        if adapter:
            weights.append(Weight(adapter, True, index, len(weights), adapter, linear=True))
    weights.append(Weight(outer, not adapter, OUTSIDE, len(weights), outer, linear=True))
    return weights
