"""A model as plain data: modules and their tensors, with shapes, dtypes and sharing."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from types import MappingProxyType
from typing import Any

from dsconfig.facts.mixers import ATTENTION, BlockKind

BYTES_OF_DTYPE: Mapping[str, int] = {
    "float64": 8,
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "float8": 1,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
}


@dataclass(frozen=True, slots=True)
class TensorFact:
    """One parameter or buffer.

    ``name`` is local to its module, as in ``module._parameters``. Tensors that share memory (tied
    weights) have the same ``storage``.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    trainable: bool = True
    storage: str = ""

    @property
    def elements(self) -> int:
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.elements * BYTES_OF_DTYPE[self.dtype]


@dataclass(frozen=True, slots=True)
class ModuleFact:
    """One module of the tree; ``name`` is its full dotted name, ``""`` for the root.

    ``repeated`` marks the blocks of a stack (the layers of a transformer).
    """

    name: str
    type: str
    parameters: tuple[TensorFact, ...] = ()
    buffers: tuple[TensorFact, ...] = ()
    children: tuple["ModuleFact", ...] = ()
    repeated: bool = False

    def walk(self) -> Iterator["ModuleFact"]:
        """Yield this module, then its descendants, in registration order."""
        pending: list[ModuleFact] = [self]
        while pending:
            module = pending.pop()
            yield module
            pending.extend(reversed(module.children))

    @property
    def elements(self) -> int:
        """Number of parameter elements of this module and its descendants, shared storage once."""
        return sum(tensor.elements for tensor in self.unique_parameters())

    def named_parameters(self) -> Iterator[tuple[str, TensorFact]]:
        """Yield tensors by full name, shared ones at each of their names."""
        for module in self.walk():
            prefix = f"{module.name}." if module.name else ""
            for tensor in module.parameters:
                yield prefix + tensor.name, tensor

    def unique_parameters(self) -> Iterator[TensorFact]:
        return (tensor for _, tensor in self.first_parameters())

    def first_parameters(self) -> Iterator[tuple[str, TensorFact]]:
        """Yield tensors by full name, shared ones only at their first name."""
        seen: set[str] = set()
        for name, tensor in self.named_parameters():
            storage = tensor.storage or name
            if storage not in seen:
                seen.add(storage)
                yield name, tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """Sizes of a decoder model, for the activation formulas (counts, not bytes)."""

    hidden_size: int
    layers: int
    heads: int
    vocab_size: int
    kv_heads: int | None = None
    head_dim: int | None = None
    intermediate_size: int | None = None
    max_positions: int | None = None
    gated_mlp: bool = True
    tied_embeddings: bool = False
    query_key_norm: bool = False
    family: str | None = None
    """Hugging Face's ``model_type`` (``llama``, ``gpt2`` ...), or ``gpt`` for our example."""
    experts: int | None = None
    experts_per_token: int | None = None
    expert_size: int | None = None
    """Inner width of one expert."""
    shared_width: int = 0
    """Combined inner width of the shared experts, which process every token."""
    dense_blocks: tuple[int, ...] = ()
    """Indices of blocks with an MLP instead of experts."""
    dense_width: int | None = None
    """Inner width of that MLP, if it differs from ``intermediate_size``."""
    blocks: tuple[BlockKind, ...] = ()
    """Kind of each block; empty: attention in all, then experts or an MLP."""
    extras: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}), hash=False)
    """Sizes used by a single family (``decoder_layers``, ``kv_lora_rank`` ...)."""

    @property
    def width_of_head(self) -> int:
        return self.head_dim or self.hidden_size // self.heads

    @property
    def width_of_queries(self) -> int:
        """Combined width of all heads."""
        return self.heads * self.width_of_head

    @property
    def width_of_keys(self) -> int:
        """Combined width of all keys; values have the same width."""
        return (self.kv_heads or self.heads) * self.width_of_head

    @property
    def width_of_mlp(self) -> int:
        return self.intermediate_size or 4 * self.hidden_size

    @property
    def kinds(self) -> Mapping[BlockKind, int]:
        """Number of blocks of each kind."""
        if self.blocks:
            return Counter(self.blocks)
        dense = len(self.dense_blocks) if self.experts else self.layers
        counts = {
            BlockKind(dense=0, has_experts=True): self.layers - dense,
            BlockKind(mixers=(ATTENTION,)): dense,
        }
        return {block: count for block, count in counts.items() if count}

    @property
    def mixed_blocks(self) -> int:
        """Number of blocks with experts."""
        return sum(count for block, count in self.kinds.items() if block.has_experts)

    @property
    def attentions(self) -> int:
        """Number of attention layers, whose scores grow quadratically with the sequence length."""
        return sum(block.attentions * count for block, count in self.kinds.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelTree:
    """What is known about a model.

    ``root`` is None if only counts are known. ``parameters`` and ``trainable`` are elements, shared
    storage counted once. ``assumed`` lists assumptions, such as the architecture behind a bare
    parameter count.
    """

    name: str
    parameters: int
    trainable: int
    root: ModuleFact | None = field(default=None, repr=False)
    architecture: Architecture | None = None
    largest_tensor: int | None = None
    largest_module: int | None = None
    """Most elements of one module, without children (DeepSpeed's ``largest_layer_params``)."""
    largest_block: int | None = None
    hidden_size: int | None = None
    """As determined by Hugging Face's integrations, whose bucket formulas use it."""
    trained_in: str | None = None
    """The dtype the weights were trained in, if known (``bfloat16`` ...)."""
    stored_in: str | None = None
    """The dtype of the published checkpoint, if known."""
    assumed: tuple[str, ...] = field(default=())
    stages: tuple[tuple[str, ...], ...] = field(default=(), repr=False)
    """Of a model built in pipeline stages, the names of the modules of each."""
    uncounted: str = ""
    """Part of the model whose parameters are not counted."""
    config: Mapping[str, Any] | None = field(
        default_factory=lambda: MappingProxyType({}), hash=False, repr=False
    )
    """Attributes of ``model.config``, which integrations search; None: it has no config."""

    @property
    def sliding_window(self) -> int | None:
        """Return the tokens that some layers attend to; None if all attend to the sequence."""
        written = dict(self.config or {})
        text = written.get("text_config")
        written |= text if isinstance(text, Mapping) else {}
        window = written.get("sliding_window")
        kinds = written.get("layer_types") or ("sliding_attention",)
        is_used = written.get("use_sliding_window", True) is not False
        is_used &= "sliding_attention" in kinds
        return window if type(window) is int and is_used else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOutline:
    """A model whose sizes are unknown; ``why`` states what is missing."""

    name: str
    why: str
    hidden_size: int | None = None
    config: Mapping[str, Any] | None = field(
        default_factory=lambda: MappingProxyType({}), hash=False, repr=False
    )
    """As in :class:`ModelTree`."""


def with_counts(tree: ModelTree, root: ModuleFact) -> ModelTree:
    """Return ``tree`` with ``root`` and every count computed from it."""
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
