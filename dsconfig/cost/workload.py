"""What one rank has to hold and do, digested from config and facts for the simulations."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby

from dsconfig.cost import hardware
from dsconfig.cost.activations import Activations, activations_of
from dsconfig.cost.optimizers import OptimizerCost, cost_in_force
from dsconfig.facts.facts import Facts
from dsconfig.facts.inputs import MOST_PARAMETERS
from dsconfig.facts.model import Architecture, ModelTree
from dsconfig.mesh import Mesh, ranks_per_node
from dsconfig.runtimes.effective import Effective, Precision
from dsconfig.schema.version import NEWEST, Version

OUTSIDE = -1


@dataclass(frozen=True, slots=True)
class Weight:
    """One parameter tensor. ``block`` is the index of its block in the stack, or OUTSIDE;
    weights of one ``module`` are needed together.
    """

    elements: int
    trainable: bool = True
    block: int = OUTSIDE
    module: int = 0
    rows: int = 1
    """Size of the first dimension, along which ``fully_shard`` divides."""
    linear: bool = False
    """The matrix of a linear map, which torch's own keeps from forward to backward."""


class Weights(tuple[Weight, ...]):
    """Those of a model or of a stage of its pipeline, in registration order, with what hundreds of
    configs ask of them all.
    """

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
        """How many there are of each number of elements."""
        return Counter(weight.elements for weight in self)

    @cached_property
    def trained_sizes(self) -> Counter[int]:
        return Counter(weight.elements for weight in self.trainable)

    @cached_property
    def segments(self) -> tuple[tuple[int, list[int]], ...]:
        """(block, indices of its weights) in order; what lies between blocks as OUTSIDE."""
        return tuple(
            (block, [index for index, _ in group])
            for block, group in groupby(enumerate(self), key=lambda each: each[1].block)
        )


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Everything the simulations of a runtime read. Sizes in elements, widths in bytes.

    What follows from it is worked out once: a simulation asks for it at every weight.
    """

    effective: Effective
    weights: Weights
    mesh: Mesh
    """Of a sharded run, whatever the stage: at stage 0 its ranks exchange all they hold."""
    ranks_per_node: int
    optimizer: OptimizerCost
    accumulation: int
    activations: Activations
    model: ModelTree
    version: Version = NEWEST
    """The release of DeepSpeed, where the runtime ends in it."""
    builds_in_pieces: bool = False
    """Under zero.Init: no rank ever holds the whole model."""
    built_width: int = 4
    """Bytes of an element as the model is built or loaded, before anything is cast: fp32, unless
    ``dtype`` (once ``torch_dtype``) of ``from_pretrained`` is one of 16 bits."""
    on_cpu: bool = False
    """The processor is the device, and gloo the communication library."""
    free_bytes: int | None = None
    """Of the device before anything is allocated, once the context and the communicators are there;
    None where its memory is not known."""
    memory_budget: int | None = None
    """Bytes past which a replay need not go on: all that is asked is whether it keeps below."""

    @cached_property
    def ranks(self) -> int:
        """Ranks that share one copy of the states (data-parallel, or the sharding group)."""
        return self.mesh.state_ranks

    @cached_property
    def replicas(self) -> int:
        """Copies of the states: more than one where the sharding group is a part of the ranks."""
        return self.mesh.replicate

    @cached_property
    def width(self) -> int:
        return self.effective.numerics.precision.bytes

    @cached_property
    def communication_width(self) -> int:
        return self.effective.numerics.communication_dtype.bytes

    @cached_property
    def accumulation_width(self) -> int:
        return self.effective.numerics.grad_accum_dtype.bytes

    @cached_property
    def master_width(self) -> int:
        numerics = self.effective.numerics
        return 2 if numerics.master_weights_16bit and numerics.precision.bytes == 2 else 4

    @cached_property
    def state_width(self) -> int:
        return 2 if self.effective.numerics.optimizer_states_16bit else self.master_width

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
        """Trainable elements of one rank's part."""
        return self.shard(self.trained)

    @cached_property
    def mixed(self) -> bool:
        return self.effective.numerics.precision is not Precision.FP32

    def shard(self, elements: int) -> int:
        """Elements of one rank's part, rounded up."""
        return self.mesh.part(elements)

    def shards(self, sizes: Mapping[int, int]) -> int:
        """The same of tensors that are divided one by one, counted by their elements."""
        return sum(self.shard(elements) * count for elements, count in sizes.items())


def workload(
    effective: Effective, facts: Facts, version: Version = NEWEST, *, in_engine: bool = False
) -> Workload:
    """Digest config and facts. Raises ValueError when the model or world size is unknown."""
    if facts.model is None:
        raise ValueError(facts.why_no_model)
    if facts.world_size is None:
        raise ValueError("the number of devices is unknown: give --gpus")
    if facts.model.parameters > MOST_PARAMETERS:
        raise ValueError(
            f"--params: {facts.model.parameters:.3g} parameters are beyond any model; write a "
            "count like 13e9, 13B or 700M"
        )
    batch, arguments = effective.batch, facts.arguments
    dtype = str(arguments.get("dtype") or arguments.get("torch_dtype") or "")
    is_half = dtype.removeprefix("torch.") in {"bfloat16", "float16", "bf16", "fp16"}
    memory = facts.device_bytes
    mesh = Mesh.over(
        facts.world_size,
        sharded=True,
        group=effective.zero.mics_shard_size,
        tensor=facts.tensor_parallel,
        sequence=facts.sequence_parallel,
        pipeline=facts.pipeline_parallel,
    )
    return Workload(
        effective=effective,
        weights=weights_of(facts.model, facts.tensor_parallel),
        mesh=mesh,
        ranks_per_node=ranks_per_node(facts.world_size, facts.nodes),
        optimizer=cost_in_force(effective, facts, facts.model, in_engine=in_engine),
        accumulation=batch.accumulation if batch else 1,
        activations=activations_of(effective, facts),
        model=facts.model,
        version=version,
        # Usual at stage 3 (Hugging Face does it by itself); ``zero_init`` says no.
        builds_in_pieces=effective.zero.stage == 3 and bool(arguments.get("zero_init", True)),
        built_width=2 if is_half else 4,
        on_cpu=facts.on_cpu,
        free_bytes=None if memory is None else memory - hardware.outside_bytes(facts),
    )


_CACHE: dict[tuple[int, int], tuple[ModelTree, Weights]] = {}


def weights_of(model: ModelTree, degree: int = 1) -> Weights:
    """The tensors of a model in registration order, shared storage once, divided by ``degree``.

    Trees are frozen and large: the answer is kept by identity, so that a search over
    hundreds of configs walks the tree once.
    """
    key = (id(model), degree)
    found = _CACHE.get(key)
    if found is None or found[0] is not model:
        if len(_CACHE) > 32:
            _CACHE.clear()
        made = _from_tree(model) if model.root is not None else _from_counts(model)
        if degree > 1:
            made = [replace(each, elements=max(1, each.elements // degree)) for each in made]
        found = _CACHE[key] = (model, Weights(made))
    return found[1]


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
                found.append(
                    Weight(tensor.elements, tensor.trainable, current, place, rows, linear)
                )
    return found


def _matrices(block: int, shape: Architecture | None) -> tuple[list[int], list[int]]:
    """Elements of a block's matrices, and of the two tensors of its experts, where it has some."""
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
    """Embedding, equal blocks of seven matrices, head: only the sum is known for certain."""
    shape = model.architecture
    layers = shape.layers if shape else 32
    table = shape.vocab_size * shape.hidden_size if shape else model.parameters // 100
    outer = min(table, model.parameters // 4)
    block, rest = divmod(model.parameters - 2 * outer, layers)
    matrices, experts = _matrices(block, shape)
    count = (shape.experts if shape else None) or 1
    # Where only the sum of trainable elements is known: adapters of equal size in every block.
    adapter = model.trainable // layers if model.trainable < model.parameters else 0
    first = max(1, outer + rest - adapter * layers)
    weights = [Weight(first, not adapter, rows=first)]
    for index in range(layers):
        weights += [
            Weight(elements, not adapter, index, len(weights) + place, elements, linear=True)
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
