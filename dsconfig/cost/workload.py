"""Memory and work of one rank, derived from config and facts for the simulations."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from dsconfig.cost import hardware
from dsconfig.cost.activations import Activations, activations_of
from dsconfig.cost.masks import dense_mask_bytes
from dsconfig.cost.master_weights import specified
from dsconfig.cost.optimizers import OptimizerCost, cost_in_force
from dsconfig.cost.weights import Size, Weight, Weights, packing_of, weights_of
from dsconfig.facts.facts import Facts
from dsconfig.facts.inputs import MAX_PARAMETERS
from dsconfig.facts.model import ModelTree
from dsconfig.facts.naming import named, subject
from dsconfig.mesh import UNDIVIDED, Mesh, ranks_per_node
from dsconfig.runtimes.effective import Effective, Precision, mesh_of
from dsconfig.runtimes.storage import Storage, storage_of
from dsconfig.schema.version import NEWEST, Version

KEEPS_DTYPE = Version(5, 0, 0)
"""First release of transformers in which ``from_pretrained`` keeps the dtype of a checkpoint: its
default of ``dtype`` is "auto". Earlier ones load fp32."""
_SIXTEEN_BIT = frozenset(("bfloat16", "float16", "bf16", "fp16"))


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
    mask_bytes: int = 0
    """A dense mask of a sequence divided over ranks."""
    version: Version = NEWEST
    """The DeepSpeed release, if the runtime uses DeepSpeed."""
    builds_in_pieces: bool = False
    """Under zero.Init: no rank ever holds the full model."""
    built: Weights
    """The tensors that a rank builds or loads: tensor and expert parallelism divide them later."""
    built_width: int = 4
    """Bytes of an element as the model is built or loaded, before any cast."""
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
    def storage(self) -> Storage:
        """Return what dsengine stores on the device; a plan of this run contains it."""
        return storage_of(self.effective, self.mesh)

    @cached_property
    def shard_width(self) -> int:
        return self.storage.shard.bytes

    @cached_property
    def gradient_width(self) -> int:
        return self.storage.gradient.bytes

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
        return self._shard_with(self.trained, self.weights.expert_trained)

    @cached_property
    def held(self) -> int:
        """Return all elements of one rank's shard."""
        return self._shard_with(self.elements, self.weights.expert_elements)

    @cached_property
    def held_frozen(self) -> int:
        """Return the frozen elements of one rank's shard."""
        of_experts = self.weights.expert_elements - self.weights.expert_trained
        return self._shard_with(self.frozen_elements, of_experts)

    @cached_property
    def expert_ranks(self) -> int:
        """Return the ranks that share one copy of the states of an expert."""
        return self.mesh.expert_state_ranks

    def _shard_with(self, elements: int, of_experts: int) -> int:
        """Return the elements of one rank's shard of a total, some of which belong to experts:
        those are divided over fewer ranks."""
        fewer = self.ranks // self.expert_ranks
        return self.shard(elements + of_experts * (fewer - 1))

    def shard_of(self, weight: Weight) -> int:
        """Return the elements of one rank's shard of a tensor."""
        ranks = self.expert_ranks if weight.expert else self.ranks
        return -(-weight.elements // ranks)

    @cached_property
    def mixed(self) -> bool:
        """Return whether 16-bit weights are trained, with or without a copy of another dtype."""
        return self.effective.numerics.precision is not Precision.FP32

    def shard(self, elements: int) -> int:
        """Return the elements of one rank's shard, rounded up."""
        return self.mesh.part(elements)

    def shards(self, sizes: Mapping[Size, int]) -> int:
        """Return the same for tensors that are divided one by one, counted by their size."""
        of = {False: self.ranks, True: self.expert_ranks}
        each = ((-(-elements // of[expert]), n) for (elements, expert), n in sizes.items())
        return sum(elements * count for elements, count in each)


def require_facts(facts: Facts, *, device: bool = False, sequence_length: bool = False) -> None:
    """Raise ValueError with every fact that is missing for an estimate."""
    length = facts.training.sequence_length if facts.training is not None else None
    missing = (
        (facts.model is None, facts.why_no_model),
        (facts.world_size is None, f"the number of GPUs is unknown: specify {named('gpus')}"),
        (
            device and facts.device_bytes is None,
            f"the device is unknown: specify {named('device')} or {named('device_memory')}",
        ),
        (
            sequence_length and length is None,
            f"the sequence length is unknown: specify {named('seq_len')}",
        ),
    )
    problems = [problem for is_missing, problem in missing if is_missing]
    if problems:
        raise ValueError("; ".join(problems))


def workload(
    effective: Effective, facts: Facts, version: Version = NEWEST, *, in_engine: bool = False
) -> Workload:
    """Derive a workload from config and facts. Raises ValueError if the model or world size is
    unknown."""
    require_facts(facts)
    assert facts.model is not None and facts.world_size is not None
    if facts.model.parameters > MAX_PARAMETERS:
        raise ValueError(
            f"{subject('params')}: {facts.model.parameters:.3g} parameters exceed any model; write "
            "a count like 13e9, 13B or 700M"
        )
    batch, memory = effective.batch, facts.device_bytes
    packing = packing_of(effective, facts)
    # Megatron's layers, which a pipeline divides as well, are built divided.
    degrees = facts.degrees if facts.degrees.pipeline > 1 else UNDIVIDED
    return Workload(
        effective=effective,
        weights=weights_of(facts.model, facts.degrees, packing),
        built=weights_of(facts.model, degrees, packing),
        mesh=mesh_of(effective.zero, facts),
        ranks_per_node=ranks_per_node(facts.world_size, facts.nodes),
        optimizer=cost_in_force(effective, facts, facts.model, in_engine=in_engine),
        accumulation=batch.accumulation if batch else 1,
        activations=activations_of(effective, facts),
        mask_bytes=dense_mask_bytes(facts) if in_engine else 0,
        model=facts.model,
        version=version,
        # Usual at stage 3 (Hugging Face enables it); ``zero_init`` may disable it. transformers
        # quantizes the full model on each device first (``get_init_context`` of 5.23).
        builds_in_pieces=effective.zero.stage == 3
        and packing is None
        and bool(facts.arguments.get("zero_init", True)),
        built_width=loaded_width(facts),
        copies_masters=specified(facts) != "none",
        on_cpu=facts.on_cpu,
        free_bytes=None if memory is None else memory - hardware.outside_bytes(facts),
    )


def loaded_width(facts: Facts) -> int:
    """Return the bytes of an element as ``from_pretrained`` loads it: in ``dtype`` (formerly
    ``torch_dtype``), else in the default of the transformers release."""
    given = facts.arguments.get("dtype") or facts.arguments.get("torch_dtype")
    release = facts.releases.get("transformers")
    keeps = release is None or Version.parse(release) >= KEEPS_DTYPE
    dtype = str(given or ("auto" if keeps else "float32")).removeprefix("torch.")
    if dtype == "auto":
        dtype = facts.model.stored_in if facts.model is not None else None
    return 2 if dtype in _SIXTEEN_BIT else 4
