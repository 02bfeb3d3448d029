"""Memory and work of one rank, derived from config and facts for the simulations."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby

from dsconfig.cost import hardware
from dsconfig.cost.activations import Activations, activations_of
from dsconfig.cost.master_weights import specified
from dsconfig.cost.optimizers import OptimizerCost, cost_in_force
from dsconfig.facts.adapters import LINEAR_TYPES
from dsconfig.facts.base_weights import BaseWeights
from dsconfig.facts.facts import Facts
from dsconfig.facts.inputs import MAX_PARAMETERS, ArgumentError
from dsconfig.facts.model import Architecture, ModelTree
from dsconfig.mesh import UNDIVIDED, Degrees, Mesh, ranks_per_node
from dsconfig.runtimes.effective import Effective, Precision, mesh_of
from dsconfig.schema.version import NEWEST, Version

OUTSIDE = -1


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
    def sizes(self) -> Counter[int]:
        """Return how many tensors there are of each number of elements."""
        return Counter(weight.elements for weight in self)

    @cached_property
    def trained_sizes(self) -> Counter[int]:
        return Counter(weight.elements for weight in self.trainable)

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


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Everything the simulations of a runtime read. Sizes in elements, widths in bytes.

    Derived values are cached: a simulation reads them at every weight.
    """

    effective: Effective
    weights: Weights
    mesh: Mesh
    ranks_per_node: int
    optimizer: OptimizerCost
    accumulation: int
    activations: Activations
    model: ModelTree
    version: Version = NEWEST
    """The DeepSpeed release, if the runtime uses DeepSpeed."""
    builds_in_pieces: bool = False
    """Under zero.Init: no rank ever holds the full model."""
    built_width: int = 4
    """Bytes of an element as the model is built or loaded, before any cast: fp32, unless ``dtype``
    (formerly ``torch_dtype``) of ``from_pretrained`` is 16-bit."""
    copies_masters: bool = True
    """False: the optimizer updates the 16-bit weights themselves."""
    on_cpu: bool = False
    """The device is a CPU, and gloo the communication library."""
    free_bytes: int | None = None
    """Device memory after context and communicators, before any allocation; None if unknown."""
    memory_budget: int | None = None
    """Bytes at which a replay may stop: the caller only checks whether it fits."""

    @cached_property
    def ranks(self) -> int:
        """Return the ranks that share one copy of the states (data-parallel, or the sharding
        group)."""
        return self.mesh.state_ranks

    @cached_property
    def replicas(self) -> int:
        """Return the copies of the states: more than one if the sharding group is smaller than the
        ranks."""
        return self.mesh.replicate

    @cached_property
    def width(self) -> int:
        return self.effective.numerics.precision.bytes

    @property
    def dequantized_bytes(self) -> int:
        """Return the compute-dtype copy of the largest quantized weight, made for one product."""
        return self.weights.largest_quantized * self.width

    @cached_property
    def communication_width(self) -> int:
        return self.effective.numerics.communication_dtype.bytes

    @cached_property
    def accumulation_width(self) -> int:
        return self.effective.numerics.grad_accum_dtype.bytes

    @cached_property
    def master_width(self) -> int:
        return self.effective.numerics.master_dtype.bytes

    @cached_property
    def state_width(self) -> int:
        return self.effective.numerics.state_dtype.bytes

    @property
    def elements(self) -> int:
        return self.weights.elements

    @property
    def trainable(self) -> tuple[Weight, ...]:
        return self.weights.trainable

    @property
    def frozen_elements(self) -> int:
        return self.elements - self.trained

    @property
    def trained(self) -> int:
        return self.weights.trained

    @property
    def largest_trained(self) -> int:
        return self.weights.largest_trained

    @cached_property
    def owned(self) -> int:
        """Return the trainable elements of one rank's shard."""
        return self.shard(self.trained)

    @cached_property
    def mixed(self) -> bool:
        """Return whether 16-bit weights are trained, with or without a copy of another dtype."""
        return self.effective.numerics.precision is not Precision.FP32

    def shard(self, elements: int) -> int:
        """Return the elements of one rank's shard, rounded up."""
        return self.mesh.part(elements)

    def shards(self, sizes: Mapping[int, int]) -> int:
        """Return the same for tensors that are divided one by one, counted by their elements."""
        return sum(self.shard(elements) * count for elements, count in sizes.items())


def require_facts(facts: Facts, *, device: bool = False, sequence_length: bool = False) -> None:
    """Raise ValueError with every fact that is missing for an estimate."""
    length = facts.training.sequence_length if facts.training is not None else None
    missing = (
        (facts.model is None, facts.why_no_model),
        (facts.world_size is None, "the number of GPUs is unknown: specify gpus="),
        (
            device and facts.device_bytes is None,
            "the device is unknown: specify device= or device_memory=",
        ),
        (sequence_length and length is None, "the sequence length is unknown: specify seq_len="),
    )
    problems = [problem for is_missing, problem in missing if is_missing]
    if problems:
        raise ArgumentError("; ".join(problems))


def workload(
    effective: Effective, facts: Facts, version: Version = NEWEST, *, in_engine: bool = False
) -> Workload:
    """Derive a workload from config and facts. Raises ValueError if the model or world size is
    unknown."""
    require_facts(facts)
    assert facts.model is not None and facts.world_size is not None
    if facts.model.parameters > MAX_PARAMETERS:
        raise ArgumentError(
            f"params=: {facts.model.parameters:.3g} parameters exceed any model; write a "
            "count like 13e9, 13B or 700M"
        )
    batch, arguments = effective.batch, facts.arguments
    dtype = str(arguments.get("dtype") or arguments.get("torch_dtype") or "")
    is_half = dtype.removeprefix("torch.") in {"bfloat16", "float16", "bf16", "fp16"}
    memory = facts.device_bytes
    packing = packing_of(effective, facts)
    return Workload(
        effective=effective,
        weights=weights_of(facts.model, facts.degrees, packing),
        mesh=mesh_of(effective.zero, facts),
        ranks_per_node=ranks_per_node(facts.world_size, facts.nodes),
        optimizer=cost_in_force(effective, facts, facts.model, in_engine=in_engine),
        accumulation=batch.accumulation if batch else 1,
        activations=activations_of(effective, facts),
        model=facts.model,
        version=version,
        # Usual at stage 3 (Hugging Face enables it); ``zero_init`` may disable it. transformers
        # quantizes the full model on each device first (``get_init_context`` of 5.23).
        builds_in_pieces=effective.zero.stage == 3
        and packing is None
        and bool(arguments.get("zero_init", True)),
        built_width=2 if is_half else 4,
        copies_masters=specified(facts) != "none",
        on_cpu=facts.on_cpu,
        free_bytes=None if memory is None else memory - hardware.outside_bytes(facts),
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
            f"--base-weights {facts.base_weights}: quantized weights cannot be trained; specify "
            "--lora-rank or --trainable"
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
        if packing is not None:
            made = [_packed(each, *packing) for each in made]
        found = _CACHE[key] = (model, Weights(made))
    return found[1]


def _divided(weight: Weight, degree: int) -> Weight:
    return replace(weight, elements=max(1, weight.elements // degree))


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


def _from_tree(model: ModelTree) -> list[Weight]:
    assert model.root is not None
    blocks: dict[str, int] = {}
    for module in model.root.walk():
        inside = any(module.name.startswith(f"{name}.") for name in list(blocks)[-1:])
        if module.repeated and not inside:
            blocks[module.name] = len(blocks)
    found: list[Weight] = []
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
                found.append(
                    Weight(
                        tensor.elements,
                        tensor.trainable,
                        current,
                        place,
                        rows,
                        linear,
                        quantizable,
                    )
                )
    return found


def _matrices(block: int, shape: Architecture | None) -> tuple[list[int], list[int]]:
    """Return the elements of a block's matrices, and of the two tensors of its experts, if any."""
    experts: list[int] = []
    if shape is not None and shape.experts:
        inner = shape.experts * (shape.expert_size or shape.width_of_mlp)
        sizes = [(2 if shape.gated_mlp else 1) * shape.hidden_size * inner]
        sizes.append(shape.hidden_size * inner)
        # Blocks without experts make the average block smaller than one with them.
        share = min(1.0, 0.95 * block / sum(sizes))
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
            Weight(elements, not adapter, index, len(weights), count) for elements in experts
        ]
        if adapter:
            weights.append(Weight(adapter, True, index, len(weights), adapter, linear=True))
    weights.append(Weight(outer, not adapter, OUTSIDE, len(weights), outer, linear=True))
    return weights
