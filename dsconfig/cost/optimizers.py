"""What the optimizer keeps for each element a rank owns, and needs in a step."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from math import isqrt, prod
from typing import TYPE_CHECKING, Any

from dsconfig.facts import architectures
from dsconfig.facts.facts import Facts
from dsconfig.facts.model import Architecture, ModelTree, ModuleFact
from dsconfig.runtimes.effective import Effective, Named, Tier
from dsconfig.schema.optimizers import (
    NO_SCRATCH,
    OPTIMIZER_CLASSES,
    OptimizerClass,
    Scratch,
    optimizer_type,
)
from dsconfig.schema.trainer_optimizers import TrainerOptimizer, trainer_optimizer

if TYPE_CHECKING:
    from dsconfig.cost.workload import Workload


@dataclass(frozen=True, slots=True)
class OptimizerCost:
    """``states`` are tensors of the element's size; the rest as in ``OptimizerClass``."""

    states: float
    scratch: Scratch = NO_SCRATCH
    lists: int | None = None
    """Tensors besides gradients and states if torch updates all tensors at once, its default on
    CUDA; None for classes that never do."""
    eager: bool = False
    other_bytes: float = 0.0
    fused: bool = True
    leaves_to_adam: tuple[str, ...] = ()
    share_of_adam: float = 0.0
    """Fraction of the trainable elements that Muon updates with Adam."""
    matrices: frozenset[tuple[int, ...]] = frozenset()
    """Shapes that Muon orthogonalizes, if known."""

    def temporaries(self, together: int, largest: int, *, on_cpu: bool) -> int:
        """Return the elements that an update in DeepSpeed needs besides gradients and states.

        ``together`` are those updated by one optimizer call, in a flat partition or a list of
        tensors; ``largest`` those of the largest tensor among them.
        """
        if self.lists is None or on_cpu:
            return largest * self.scratch.alone
        return together * self.lists

    def temporaries_below(self, elements: int) -> int:
        """Return the elements that an update of ``elements`` in host memory needs besides gradients
        and states.

        Muon's Adam part has four at once: both corrected moments, a root, and the sum or quotient
        made of it (``adam_update`` of DeepSpeed 0.19.8, read).
        """
        return int(elements * (self.scratch.alone + 4 * self.share_of_adam))

    def state_bytes(self, elements: int, width: int) -> int:
        """Return the bytes for ``elements`` with states of ``width`` bytes."""
        return int(elements * (self.states * width + self.other_bytes))


def optimizer_cost(
    optimizer: Named | None,
    client: str | None = None,
    *,
    trainer: TrainerOptimizer | None = None,
    offloaded: bool = False,
    in_engine: bool = False,
    flat: bool = False,
) -> OptimizerCost:
    """Return the cost of the configured optimizer, else of the client's or the Trainer's; Adam if
    none is known.

    ``in_engine``: with the states of the class that dsengine builds, not DeepSpeed. ``flat``: it
    updates flat partitions.
    """
    params = dict(optimizer.params) if optimizer else {}
    found = optimizer_type(optimizer.type if optimizer else "AdamW")
    kind = OPTIMIZER_CLASSES["FusedAdam"]
    if optimizer is None and client is not None:
        found, named = optimizer_type(client), client_class(client)
        kind = named or kind
    elif found is not None:
        kind = OPTIMIZER_CLASSES[found.class_in_deepspeed(params, offloaded=offloaded)]
    if optimizer is None and client is None and trainer is not None:
        kind, params, found = trainer.kind, dict(trainer.params), None
    ours = found.class_in_engine(params) if found is not None and in_engine else None
    keeps = OPTIMIZER_CLASSES[ours] if ours is not None else kind
    return OptimizerCost(
        states=len(keeps.states_for(params)) + (len(keeps.flat_states) if flat else 0),
        scratch=NO_SCRATCH if kind.is_torch and params.get("fused") else kind.scratch.given(params),
        lists=_at_once(kind, params),
        eager=kind.is_eager,
        other_bytes=kind.other_bytes,
        fused=kind.is_fused,
        leaves_to_adam=kind.leaves_to_adam,
    )


def optimizer_label(effective: Effective, facts: Facts) -> str:
    """Return the optimizer that is estimated, with its source unless it is in the config."""
    trainer = _of_trainer(effective, facts)
    if effective.optimizer is not None:
        found = optimizer_type(effective.optimizer.type)
        return found.name if found is not None else effective.optimizer.type
    client, named = facts.client_optimizer, facts.arguments.get("optim")
    if client is not None:
        return client if client_class(client) else f"AdamW (assumed; {client} is unknown)"
    if trainer is not None:
        return trainer.label
    return f"AdamW (assumed; optim={named} is unknown)" if named else "AdamW (assumed)"


def _of_trainer(effective: Effective, facts: Facts) -> TrainerOptimizer | None:
    """Return the optimizer that reaches DeepSpeed from a Trainer."""
    built = trainer_optimizer(facts.arguments)
    is_offloaded = effective.zero.optimizer_tier is not Tier.DEVICE
    is_replaced = is_offloaded and effective.config.get(FORCED, True)
    return built.on_host if built is not None and is_replaced else built


FORCED = "zero_force_ds_cpu_optimizer"
_BY_LOWER_NAME = {
    name.lower().removeprefix("torch."): kind for name, kind in OPTIMIZER_CLASSES.items()
}
"""torch's optimizers by their bare name."""


def client_class(name: str) -> OptimizerClass | None:
    """Return the class of a script's optimizer; None if it is unknown.

    ``name`` is its class, alone or after its modules (``bnb.optim.Lion8bit``), the type of a
    config, or a value of the Trainer's ``optim``; spelled in any case, with or without underscores.
    """
    chosen = trainer_optimizer({"optim": name.lower()})
    found = optimizer_type(name.rpartition(".")[2])
    *modules, bare = name.lower().replace("_", "").split(".")
    of_package = f"{modules[0]}.{bare}" if modules else bare
    for known in (of_package, bare):
        if known in _BY_LOWER_NAME:
            return _BY_LOWER_NAME[known]
    if chosen is not None:
        return chosen.kind
    return None if found is None else OPTIMIZER_CLASSES[found.on_device]


def cost_in_force(
    effective: Effective, facts: Facts, model: ModelTree, *, in_engine: bool
) -> OptimizerCost:
    """Return the cost of one run's optimizer; Muon has Adam's second moment for
    non-matrix tensors."""
    zero, named = effective.zero, effective.optimizer
    offloaded = zero.optimizer_tier is not Tier.DEVICE
    cost = optimizer_cost(
        named,
        facts.client_optimizer,
        trainer=None if in_engine else _of_trainer(effective, facts),
        offloaded=offloaded,
        in_engine=in_engine,
        flat=zero.stage > 0 and not in_engine,
    )
    if not cost.leaves_to_adam:
        return cost
    root = model.root or _root_like(model.architecture)
    named_tensors = root.first_parameters() if root is not None else ()
    trained = [(name.lower(), tensor) for name, tensor in named_tensors if tensor.trainable]
    of_muon = [
        tensor
        for name, tensor in trained
        if len(tensor.shape) >= 2 and not any(part in name for part in cost.leaves_to_adam)
    ]
    elements = sum(tensor.elements for _, tensor in trained)
    share = (elements - sum(tensor.elements for tensor in of_muon)) / max(1, elements)
    matrices = frozenset(tensor.shape for tensor in of_muon if len(tensor.shape) == 2)
    cost = replace(cost, share_of_adam=share, matrices=matrices)
    states = cost.states + share
    if in_engine or (zero.stage < 3 and offloaded):
        return replace(cost, states=states)
    # DeepSpeed's momentum has the dtype of the gradients that it is mixed with: read from
    # `_muon_momentum_buffer` (stage_1_and_2.py) and `_create_momentum_buffer` (stage3.py) of
    # 0.19.8, and seen in runs of it: 16 bits in bf16, on the device and, at stage 3, on the host;
    # fp32 where stages 1 and 2 offload.
    width = effective.numerics.communication_dtype.bytes
    of_adam = states - 1  # one momentum for every element, a second for Adam's
    return replace(cost, states=2 * of_adam, other_bytes=width * (1 - of_adam))


@lru_cache(maxsize=8)
def _root_like(architecture: Architecture | None) -> ModuleFact | None:
    """Return the modules of the architecture behind a parameter count."""
    tree = architectures.model_of("", architecture) if architecture is not None else None
    return tree.root if tree is not None else None


def _at_once(kind: OptimizerClass, params: Mapping[str, Any]) -> int | None:
    """Return the temporaries of foreach updates, decided as
    ``torch.optim.optimizer._default_to_fused_or_foreach`` does on CUDA.

    mup's classes call torch's. Adafactor uses foreach only if set (torch/optim/_adafactor.py), and
    non-elementwise optimizers have no lists otherwise.
    """
    if not kind.is_elementwise and not params.get("foreach"):
        return None
    if not (kind.is_torch or kind.package == "mup") or params.get("fused"):
        return None
    if params.get("foreach") is False or params.get("differentiable"):
        return None
    return kind.scratch.given(params).lists


_CHOOSE_KERNELS = frozenset(("fused", "foreach", "differentiable"))


def temporary_bytes(job: "Workload", elements: int, part: Callable[[int], int]) -> int:
    """Return the bytes besides gradients and states in dsengine's update of ``elements``.

    ``part`` returns a rank's share of a tensor's elements. Kernels are fused if PyTorch has them
    and the parameters do not choose otherwise; elsewhere a full list of tensors is updated at once
    (``foreach``, torch's default on CUDA, and Lion's own way), on a CPU one tensor after the other
    (``dsengine.optimizers.build``).
    """
    named, width = job.effective.optimizer, job.master_width
    chosen: Mapping[str, Any] = named.params if named is not None else {}
    found = optimizer_type(named.type if named is not None else "AdamW")
    ours = found.class_in_engine(chosen) if found is not None else None
    largest = part(job.largest_trained)
    if ours is None:
        scratch = job.optimizer.scratch
        return width * (largest * scratch.loops if job.on_cpu else elements * scratch.lists)
    kind = OPTIMIZER_CLASSES[ours]
    if job.optimizer.matrices:
        of_adam = int(elements * job.optimizer.share_of_adam)
        adam = OPTIMIZER_CLASSES["torch.AdamW"].scratch
        adams = min(largest, of_adam) * adam.loops if job.on_cpu else of_adam * adam.lists
        return max(width * adams, _orthogonalizing_bytes(job.optimizer.matrices, part))
    fused = kind.is_torch_fused_on("cpu" if job.on_cpu else "cuda")
    if chosen.get("fused") or (fused and not _CHOOSE_KERNELS & chosen.keys()):
        return 0
    all_at_once = kind.is_elementwise
    if kind.is_torch:
        foreach = chosen.get("foreach")
        all_at_once = not job.on_cpu if foreach is None else foreach
    if not all_at_once:
        return largest * width * kind.scratch.given(chosen).loops
    return elements * width * kind.scratch.given(chosen).lists


def newton_schulz_bytes(shape: tuple[int, ...], width: int) -> int:
    """Return the bytes of DeepSpeed's ``muon_update`` for one matrix, result included, in eager
    mode; under torch.compile, which DeepSpeed uses, it may need less.

    Its iteration (gram) works in 16 bits: seven squares of the shorter side plus the matrix, or
    four plus the matrix twice; six for a square matrix. Before it there are two of momentum, or the
    test for infinities. Measured with 0.19.8 on a CPU, to the byte at aspect ratios from 1:1 to
    1:16.
    """
    elements, square = prod(shape), min(shape) ** 2
    if elements == square:
        return 12 * elements
    first = max(2 * width, width + 3) * elements
    return max(first, 4 * elements + 8 * square, 2 * elements + 14 * square)


def muon_bytes(job: "Workload", width: int) -> int:
    """Return the same for its largest matrix; if shapes are unknown, for a square one of the size
    of the largest tensor."""
    if not job.optimizer.leaves_to_adam:
        return 0
    side = isqrt(job.largest_trained)
    shapes = job.optimizer.matrices or {(side, side)}
    return max(newton_schulz_bytes(shape, width) for shape in shapes)


def _orthogonalizing_bytes(matrices: Iterable[tuple[int, ...]], part: Callable[[int], int]) -> int:
    """Return the bytes of torch's Muon for its largest matrix: equal to the byte in all dry runs.

    The update in fp32 and two copies in bf16; plus two products of its shorter side, unsharded on
    each rank, and a third while ranks reduce them.
    """
    most = 0
    for shape in matrices:
        elements, square = prod(shape), 2 * min(shape) ** 2
        own = part(elements)
        most = max(most, 8 * own + 2 * square, 6 * own + 3 * square if own < elements else 0)
    return most
