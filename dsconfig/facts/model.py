"""A model as plain data: names, shapes, dtypes, what is trainable, shared or repeated."""

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
    """One parameter or buffer. ``storage`` is equal for tensors that share memory (tied weights).

    ``name`` is local to its module, as in ``module._parameters``.
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
        """This module, then its descendants, in registration order."""
        ahead: list[ModuleFact] = [self]
        while ahead:
            module = ahead.pop()
            yield module
            ahead.extend(reversed(module.children))

    @property
    def elements(self) -> int:
        """Parameter elements of this module and below, shared storage counted once."""
        return sum(tensor.elements for tensor in self.unique_parameters())

    def named_parameters(self) -> Iterator[tuple[str, TensorFact]]:
        """Full names with tensors, shared ones at every place they stand."""
        for module in self.walk():
            prefix = f"{module.name}." if module.name else ""
            for tensor in module.parameters:
                yield prefix + tensor.name, tensor

    def unique_parameters(self) -> Iterator[TensorFact]:
        return (tensor for _, tensor in self.first_parameters())

    def first_parameters(self) -> Iterator[tuple[str, TensorFact]]:
        """Those of :meth:`named_parameters`, shared ones at the first place alone."""
        seen: set[str] = set()
        for name, tensor in self.named_parameters():
            storage = tensor.storage or name
            if storage not in seen:
                seen.add(storage)
                yield name, tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """The sizes of a decoder model that activation formulas need (counts, not bytes)."""

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
    """Inner width of the experts that every token goes through, together."""
    dense_blocks: tuple[int, ...] = ()
    """Places of blocks that have an MLP where the others have experts."""
    dense_width: int | None = None
    """Inner width of that MLP, where it is not ``intermediate_size``."""
    blocks: tuple[BlockKind, ...] = ()
    """What each block is made of; empty: attention in all, then experts or an MLP."""
    extras: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}), hash=False)
    """Sizes only one family has (``decoder_layers``, ``kv_lora_rank`` ...)."""

    @property
    def width_of_head(self) -> int:
        return self.head_dim or self.hidden_size // self.heads

    @property
    def width_of_queries(self) -> int:
        """Of all heads together."""
        return self.heads * self.width_of_head

    @property
    def width_of_keys(self) -> int:
        """Of all keys together; their values are as wide."""
        return (self.kv_heads or self.heads) * self.width_of_head

    @property
    def width_of_mlp(self) -> int:
        return self.intermediate_size or 4 * self.hidden_size

    @property
    def kinds(self) -> Mapping[BlockKind, int]:
        """How many blocks there are of each kind."""
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
        """Blocks with experts."""
        return sum(count for block, count in self.kinds.items() if block.has_experts)

    @property
    def attentions(self) -> int:
        """Layers of attention, whose scores grow with the square of the length."""
        return sum(block.attentions * count for block, count in self.kinds.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelTree:
    """What is known about a model.

    ``root`` is None when only counts are known. ``parameters`` and ``trainable`` are
    elements, shared storage counted once. ``assumed`` says in words what was made up
    (the architecture behind a bare parameter count, say); it is empty when all is known.
    """

    name: str
    parameters: int
    trainable: int
    root: ModuleFact | None = field(default=None, repr=False)
    architecture: Architecture | None = None
    largest_tensor: int | None = None
    largest_module: int | None = None
    """Most elements held by one module itself (DeepSpeed's ``largest_layer_params``)."""
    largest_block: int | None = None
    hidden_size: int | None = None
    """As Hugging Face's integrations find it (the width their bucket formulas use)."""
    trained_in: str | None = None
    """The dtype the weights were trained in, where it is known (``bfloat16`` ...)."""
    assumed: tuple[str, ...] = field(default=())
    config: Mapping[str, Any] | None = field(
        default_factory=lambda: MappingProxyType({}), hash=False, repr=False
    )
    """The attributes of ``model.config``, which integrations search; None: it has no such thing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOutline:
    """What is known of a model whose sizes are not; ``why`` says what is missing."""

    name: str
    why: str
    hidden_size: int | None = None
    config: Mapping[str, Any] | None = field(
        default_factory=lambda: MappingProxyType({}), hash=False, repr=False
    )
    """As that of a :class:`ModelTree`."""


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
