"""LoRA adapters on the linear layers of a model's blocks, as PEFT adds them.

An adapted module becomes ``base_layer`` with ``lora_A`` (rank x in) and ``lora_B`` (out x rank);
all original parameters are frozen (PEFT, tuners/lora/layer.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dsconfig.facts.model import ModelTree, ModuleFact, TensorFact, with_counts
from dsconfig.facts.naming import named

ALL_LINEAR = "all-linear"
"""PEFT's name for every linear layer except the head."""

LINEAR_TYPES = ("Linear", "Conv1D")
_BASE, _DROPOUT, _DOWN, _UP = "base_layer", "lora_dropout", "lora_A", "lora_B"


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapters:
    """Inputs and outputs of one block's adapters, in elements per token.

    Layers side by side read the same tensor; the last layer of a module reads the output of the
    others and of attention or the activation.
    """

    ranks: int
    """Output of their first halves."""
    inputs: int
    """Each distinct input once, except those of the last layers."""
    attention_output: int = 0
    inner: int = 0
    """Input of the last layer of the MLP."""
    dropped: int = 0
    """All inputs, once per adapter with dropout, which keeps a copy and a mask."""


def with_adapters(
    tree: ModelTree, rank: int, targets: Sequence[str] = (ALL_LINEAR,), *, dropout: bool = False
) -> ModelTree:
    """Return ``tree`` frozen, with adapters of ``rank`` at modules of these names, or ALL_LINEAR.

    Raises ValueError if the tensors are unknown, a name matches no linear layer of a block, or
    there would be no adapter.
    """
    if tree.root is None:
        raise ValueError(
            f"{tree.name}: its layers are unknown, so adapters cannot be placed; specify "
            f"{named('trainable')}, the number of adapter parameters"
        )
    wanted = set(targets)
    matched: set[str] = set()
    kind = "Dropout" if dropout else "Identity"
    root = _adapted(_frozen(tree.root), (rank, kind), wanted, matched, inside=False)
    missing = wanted - matched - {ALL_LINEAR}
    if missing or not matched:
        blocks = (module for module in tree.root.walk() if module.repeated)
        inside = (module for block in blocks for module in block.walk())
        known = sorted({_name(module) for module in inside if module.type in LINEAR_TYPES})
        raise ValueError(
            f"{', '.join(sorted(missing or wanted)) or 'no name'}: not a linear layer in the "
            f"blocks of {tree.name}; choose from {', '.join(known) or 'none'}"
        )
    return with_counts(tree, root)


def with_trainable(tree: ModelTree, count: int) -> ModelTree:
    """Return ``tree`` with this many trainable parameters, of equal size in every block.

    Raises ValueError if the model has adapters or fewer parameters.
    """
    if adapters_of(tree) is not None:
        raise ValueError("the adapters in the model already define what is trained")
    if count > tree.parameters:
        raise ValueError(f"{count:,} is more than the model's {tree.parameters:,} parameters")
    assumed = (*tree.assumed, f"{count:,} trainable parameters, alike in every block")
    return replace(tree, trainable=count, root=None, assumed=assumed)


def _name(module: ModuleFact) -> str:
    return module.name.rpartition(".")[2]


def _frozen(module: ModuleFact) -> ModuleFact:
    return replace(
        module,
        parameters=tuple(replace(tensor, trainable=False) for tensor in module.parameters),
        children=tuple(map(_frozen, module.children)),
    )


def _adapted(
    module: ModuleFact,
    adapter: tuple[int, str],
    wanted: set[str],
    matched: set[str],
    *,
    inside: bool,
) -> ModuleFact:
    """Return ``module`` with adapters; ``found`` collects the matched names."""
    inside = inside or module.repeated
    own = _name(module)
    if inside and module.type in LINEAR_TYPES and not wanted.isdisjoint({own, ALL_LINEAR}):
        matched.add(own)
        return _with_adapter(module, *adapter)
    children = (
        _adapted(child, adapter, wanted, matched, inside=inside) for child in module.children
    )
    return replace(module, children=tuple(children))


def _with_adapter(module: ModuleFact, rank: int, dropout: str) -> ModuleFact:
    weight = module.parameters[0]
    is_transposed, dtype = module.type == "Conv1D", weight.dtype
    width_in, width_out = weight.shape if is_transposed else weight.shape[::-1]

    def beside(name: str, kind: str, *weights: TensorFact) -> ModuleFact:
        place = f"{module.name}.{name}"
        default = ModuleFact(f"{place}.default", kind, weights)
        return ModuleFact(place, "ModuleDict", children=(default,))

    parts = (
        replace(module, name=f"{module.name}.{_BASE}"),
        beside(_DROPOUT, dropout),
        beside(_DOWN, "Linear", TensorFact("weight", (rank, width_in), dtype)),
        beside(_UP, "Linear", TensorFact("weight", (width_out, rank), dtype)),
    )
    return ModuleFact(module.name, module.type, children=parts)


def adapters_of(tree: ModelTree) -> Adapters | None:
    """Return the adapters of the first block; None if it has none or trains anything else."""
    block = (
        next((module for module in tree.root.walk() if module.repeated), None)
        if tree.root
        else None
    )
    if block is None:
        return None
    types = {module.name: module.type for module in block.walk()}
    halves = [module for module in block.walk() if _owner(module).endswith(f".{_DOWN}")]
    trained = [name for name, tensor in block.named_parameters() if tensor.trainable]
    if not halves or any(f".{_DOWN}." not in name and f".{_UP}." not in name for name in trained):
        return None
    last = _last_of_its_module(block)
    beside: dict[str, int] = {}
    ranks = dropped = last_of_attention = last_of_mlp = 0
    for half in halves:
        rank, width = half.parameters[0].shape
        ranks += rank
        target = _owner(_owner(half))
        if types.get(f"{target}.{_DROPOUT}.{_name(half)}") == "Dropout":
            dropped += width
        elif target not in last:
            beside[_owner(target)] = width
        elif "attn" in target or "attention" in target:
            last_of_attention = width
        else:
            last_of_mlp = width
    return Adapters(
        ranks=ranks,
        inputs=sum(beside.values()),
        attention_output=last_of_attention,
        inner=last_of_mlp,
        dropped=dropped,
    )


def rank_of(tree: ModelTree) -> int | None:
    """Return the rank that all adapters have; None without adapters or if their ranks differ."""
    modules = tree.root.walk() if tree.root else ()
    halves = (module for module in modules if _owner(module).endswith(f".{_DOWN}"))
    ranks = {half.parameters[0].shape[0] for half in halves}
    return ranks.pop() if len(ranks) == 1 else None


def _owner(module: ModuleFact | str) -> str:
    name = module if isinstance(module, str) else module.name
    return name.rpartition(".")[0]


def _last_of_its_module(block: ModuleFact) -> set[str]:
    """Return the linear layers that follow others in the same module."""
    last: set[str] = set()
    for module in block.walk():
        linear = [child.name for child in module.children if child.type in LINEAR_TYPES]
        if len(linear) > 1 and not module.name.endswith((_DOWN, _UP)):
            last.add(linear[-1])
    return last
