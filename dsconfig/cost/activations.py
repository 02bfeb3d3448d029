"""Bytes that autograd keeps for backward, by closed form.

Notation: s tokens, b samples, h hidden size, a heads, k key/value heads, d head size, f inner
width of the MLP, v vocabulary, w bytes of the model dtype. Everything is per rank.

[Note: dispatch] Expert parallelism sends one row of h per token and active expert to the ranks of
the experts and, with balanced routing, receives as many; after the experts it sends them back. No
rows are kept, but those sent and those received exist at once, in backward their gradients
(``_AllToAllV`` in ``auto_ep_layer.py`` of DeepSpeed 0.19.8). Gradients of the inner width of the
experts exist between the two exchanges, not during them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from dsconfig.cost import formulas
from dsconfig.cost.families import Family, Norm, family_of, latent_attention
from dsconfig.cost.loss import FORMULAS, Loss, loss_bytes, loss_of, upcasts_logits
from dsconfig.cost.mixers import bytes_without_scores
from dsconfig.facts.adapters import Adapters, adapters_of
from dsconfig.facts.base_weights import BaseWeights
from dsconfig.facts.facts import Facts
from dsconfig.facts.mixers import BlockKind
from dsconfig.facts.model import Architecture
from dsconfig.facts.tensor_plans import splits_attention
from dsconfig.runtimes.effective import Effective
from dsconfig.schema.version import Version


class Recompute(StrEnum):
    """What backward recomputes instead of keeping it from forward."""

    NONE = "none"
    SELECTIVE = "selective"
    """The core of attention, its scores (Korthikanti et al. 2022, arXiv:2205.05198). Flash
    attention keeps no scores: with it, everything except attention and every other matrix product,
    the policy of PyTorch's selective checkpointing."""
    FULL = "full"
    """Each block, from its input."""


CHECKPOINT_INTERVAL = "checkpoint_interval"
"""Training argument: blocks between two checkpoints, if not one."""
_RECOMPUTE_NAMES = frozenset(kind.value for kind in Recompute)


@dataclass(frozen=True, slots=True, kw_only=True)
class Activations:
    """Bytes of one micro batch on one rank.

    ``per_block`` is kept from forward to backward (a checkpoint, with recomputation);
    ``recomputed`` is rebuilt in backward for one block at a time; ``temporaries`` are gradients of
    activations in the block being differentiated. ``logits_forward`` is alive at the end of
    forward, ``logits_backward`` at the start of backward. ``on_host`` are checkpoints moved to host
    memory.
    """

    blocks: int = 0
    per_block: int = 0
    recomputed: int = 0
    temporaries: int = 0
    dispatched: int = 0
    """Rows sent to other ranks and received, while they exist: part of ``temporaries``, unless the
    inner gradients are larger. [Note: dispatch]"""
    selecting: int = 0
    """Scores with which sparse attention selects tokens, while a block runs forward. They are
    computed without gradients for all pairs of tokens in fp32: a product and its copy
    (``GlmMoeDsaIndexer`` and ``DeepseekV32Indexer`` of transformers)."""
    outside: int = 0
    logits_forward: int = 0
    logits_backward: int = 0
    on_host: int = 0
    in_flight: int = 1
    """Micro batches whose forward activations are kept at once: more than one in a pipeline."""
    tokens: int = 0
    assumed: str = ""
    formula: str = ""
    loss_formula: str = ""
    pointer: str = "/train_micro_batch_size_per_gpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockBytes:
    """One block, in bytes per s*b*h: ``linear`` + ``quadratic`` * a * s / h.

    ``undivided`` is the part of ``linear`` that tensor parallelism does not divide.
    ``heads_split``: it divides ``quadratic``.
    """

    linear: float
    quadratic: float
    undivided: float
    heads_split: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """Kernels and recomputation of a run."""

    width: int = 2
    flash: bool = True
    fused: bool = False
    """Fused norm and MLP kernels (Liger and the like)."""
    loss: Loss = Loss.PLAIN
    compiled: bool = False
    """torch.compile: the loss reads 16-bit logits without an fp32 copy; norms keep their input and
    the MLP no activated gate, which the partitioner recomputes in backward."""
    dropout: bool | None = None
    """False: disabled, whatever the published config of the family has."""
    mask_width: int = 1
    """Bytes of a dropout mask element: 1 on CUDA; the model dtype on CPU."""
    exchanges: bool = False
    """Samples are divided along the sequence: attention and its output projection keep copies."""

    @property
    def lean(self) -> bool:
        """Return whether elementwise operations keep only their input."""
        return self.fused or self.compiled


def block_bytes(
    shape: Architecture,
    style: Style,
    adapters: Adapters | None = None,
    block: BlockKind | None = None,
    *,
    keeps_inputs: bool = False,
) -> BlockBytes:
    """Return what a block of this kind, or of the most common kind, keeps without recomputation.

    With ``adapters`` everything else in it is frozen: a frozen linear layer does not keep its
    input, unless it is quantized so that it does (``keeps_inputs``).
    """
    block = block or commonest(shape)
    family = family_of(shape)
    dropout = family.dropout and style.dropout is not False
    scores_dropout = family.attention_dropout and style.dropout is not False
    frozen = adapters is not None
    drops_inputs = frozen and not keeps_inputs
    norms = _norms(family, shape, style, block, frozen=frozen, keeps_outputs=not drops_inputs)
    attention = _attention(family, shape, style)
    attention -= _read_by_output(family, shape, style) if drops_inputs else 0
    quadratic = 0.0
    if not style.flash:
        quadratic = _scores(family, style, scores_dropout)
    elif scores_dropout and style.mask_width > 1:
        # No fused attention with dropout on CPU: scaled q and k, and the scores are kept.
        queries = shape.width_of_queries / shape.hidden_size
        attention += style.width * (2 * queries + shape.width_of_keys / shape.hidden_size)
        quadratic = 12.0
    masks = norms_of(block) * style.mask_width if dropout else 0
    heads_split = splits_attention(shape.family)
    return BlockBytes(
        linear=norms
        + attention * block.attentions
        + bytes_without_scores(block, style.width) / shape.hidden_size
        + _mlp(family, shape, style, block, frozen=drops_inputs)
        + masks
        + (_adapted(family, shape, style, adapters, drops_inputs) if adapters else 0),
        quadratic=quadratic * block.attentions,
        undivided=norms + masks + (0 if heads_split else attention * block.attentions),
        heads_split=heads_split,
    )


def commonest(shape: Architecture) -> BlockKind:
    """Return the most common kind of block."""
    return max(shape.kinds, key=lambda block: shape.kinds[block])


def norms_of(block: BlockKind) -> int:
    """Return the number of norms before parts of the block: one for parallel mixers, one each for
    sequential ones."""
    sequential = block.attentions == len(block.mixers) > 1
    mixing = len(block.mixers) if sequential else min(1, len(block.mixers))
    return mixing + (block.dense or int(block.has_experts))


def _attention(family: Family, shape: Architecture, style: Style) -> float:
    """Return query, key, value and output; flash attention's log-sum-exp, fp32 per head."""
    lengths = 4 * shape.heads / shape.hidden_size if style.flash else 0
    if shape.extras.get("kv_lora_rank"):
        return latent_attention(shape, style.width, flash=style.flash) + lengths
    queries = shape.width_of_queries / shape.hidden_size
    values = shape.width_of_keys / shape.hidden_size
    kept = style.width * (2 * queries + 2 * values)
    if family.fused_rotary:
        kept += style.width * (queries + values)
        kept += style.width * values if style.flash else 0
    if family.gated_attention:
        kept += style.width * 3 * queries  # the gate, its sigmoid, the product
    if style.exchanges and style.flash:
        kept += style.width * queries
    return kept + lengths


def _read_by_output(family: Family, shape: Architecture, style: Style) -> float:
    """Return what only the output projection keeps: flash attention keeps its own output too."""
    if style.flash and not family.fused_rotary:
        return 0.0
    read = shape.width_of_keys if style.flash else shape.width_of_queries
    return style.width * read / shape.hidden_size


def _adapted(
    family: Family, shape: Architecture, style: Style, adapters: Adapters, reads: bool
) -> float:
    """Return inputs and outputs of the down projections; with dropout also its own copy and mask
    for each.

    ``reads``: nothing else keeps the inputs.
    """
    read = adapters.inputs + adapters.inner if reads else 0
    if reads and _read_by_output(family, shape, style):
        read += adapters.attention_output
    dropped = (style.width + style.mask_width) * adapters.dropped
    return (style.width * (read + adapters.ranks) + dropped) / shape.hidden_size


def _norms(
    family: Family,
    shape: Architecture,
    style: Style,
    block: BlockKind,
    *,
    frozen: bool,
    keeps_outputs: bool,
) -> float:
    """Return norms with their outputs, and their fp32 scales (one per token and norm)."""
    count = norms_of(block)
    kind = Norm.LAYER if style.lean else family.norm
    full, narrow = kind.kept_frozen if frozen else kind.value
    kept = 4 * full + style.width * narrow
    inputs = 1 if family.one_norm_input else count
    outputs = (1 if family.one_norm else count) if keeps_outputs else 0
    scales = 4 * count / shape.hidden_size
    total = kept * inputs + style.width * outputs + scales
    if family.post_norms:
        total += count * kept + scales
    if shape.query_key_norm:
        normed = shape.width_of_queries + shape.width_of_keys
        total += kept * block.attentions * normed / shape.hidden_size
    return total


def _mlp(
    family: Family, shape: Architecture, style: Style, block: BlockKind, *, frozen: bool
) -> float:
    copies = family.mlp_copies
    if style.lean and copies > 2:
        copies -= 1 if shape.gated_mlp else 3  # the activated gate is recomputed in backward
    if frozen and copies > 1:
        copies -= 1  # input of its last linear layer; for ReLU the activation keeps it
    kept = style.width * copies * inner_width(shape, block) / shape.hidden_size
    if block.has_experts and shape.experts_per_token:
        kept += style.width * 2 * experts_at_work(shape)  # their inputs and outputs, a row each
        kept += 4 if family.router_in_fp32 and style.width == 2 else 0
    return kept


def inner_width(shape: Architecture, block: BlockKind) -> int:
    """Return the inner width of a block's MLPs and of all active experts, together."""
    dense = (shape.experts and shape.dense_width) or shape.width_of_mlp
    if not block.has_experts:
        return block.dense * dense
    expert = shape.expert_size or shape.width_of_mlp
    # One expert if the number per token is unknown.
    working = experts_at_work(shape) or 1
    return block.dense * dense + expert * working + shape.shared_width


def experts_at_work(shape: Architecture) -> int:
    """Return the number of experts a token is routed to."""
    every = family_of(shape).every_expert
    return (shape.experts if every else shape.experts_per_token) or 0


def _scores(family: Family, style: Style, dropout: bool) -> float:
    """Return eager attention: probabilities, in fp32 first if the family casts, a cap, a mask."""
    cast = 4 if family.scores_in_fp32 and style.width == 2 else 0
    capped = style.width if family.softcap else 0
    masked = style.mask_width + style.width if dropout else 0
    return cast + style.width + capped + masked


def operator_bytes(shape: Architecture, style: Style, block: BlockKind) -> float:
    """Return what is kept per s*b*h if attention and every other matrix product are kept.

    The policy of torchtitan's and PyTorch's selective checkpointing: of query, key, value, output,
    gate, up and down the odd ones; of a plain MLP the up projection.
    """
    inner = inner_width(shape, block) / shape.hidden_size
    gated = 1 if shape.gated_mlp and inner else 0
    queries = shape.width_of_queries / shape.hidden_size
    values = shape.width_of_keys / shape.hidden_size
    attention = style.width * (2 * queries + values) + 4 * shape.heads / shape.hidden_size
    mixed = bytes_without_scores(block, style.width) / shape.hidden_size
    return style.width * (1 + inner + gated) + mixed + attention * block.attentions


def style_of(effective: Effective, facts: Facts) -> Style:
    """Return the kernels set in the training facts; flash attention by default."""
    arguments = facts.execution
    width = effective.numerics.precision.bytes
    dropout = facts.architecture.extras.get("dropout") if facts.architecture else None
    return Style(
        width=width,
        flash=is_flash(facts),
        fused=bool(arguments.get("use_liger_kernel", False)),
        loss=loss_of(arguments),
        compiled=bool(arguments.get("torch_compile", False)),
        dropout=None if dropout is None else bool(dropout),
        mask_width=width if facts.on_cpu else 1,
        exchanges=facts.degrees.sequence > 1,
    )


FUSES_ATTENTION = Version(4, 36, 0)
"""First release of transformers that uses fused attention by default, for Llama and others (its
release notes: ``scaled_dot_product_attention`` by default)."""


def is_flash(facts: Facts) -> bool:
    """Return whether attention keeps no scores: as set, else as transformers does by default."""
    implementation = facts.execution.get("attn_implementation")
    if implementation is not None:
        return str(implementation) != "eager"
    release = facts.releases.get("transformers")
    if release is not None and Version.parse(release) < FUSES_ATTENTION:
        return False
    return facts.architecture is None or not family_of(facts.architecture).writes_scores


def sets_recomputation(facts: Facts) -> bool:
    """Return whether the training arguments set it: they override the block of the file."""
    return facts.execution.get("gradient_checkpointing") is not None


def recompute_of(effective: Effective, facts: Facts) -> Recompute:
    """Return what the training arguments set, else the block of the file."""
    value = facts.execution.get("gradient_checkpointing")
    if isinstance(value, str) and value in _RECOMPUTE_NAMES:
        return Recompute(value)
    if value and "context_fn" in (facts.execution.get("gradient_checkpointing_kwargs") or ()):
        return Recompute.SELECTIVE  # the policy is in the script
    if value is None:
        value = effective.activation_checkpointing.enabled
    return Recompute.FULL if value else Recompute.NONE


class _Blocks(NamedTuple):
    """What the blocks of a rank keep of one micro batch, in bytes."""

    shape: Architecture
    style: Style
    bytes_of: Mapping[BlockKind, BlockBytes]
    tokens: int
    length: int
    tensor: int

    def kept_by(self, kind: BlockKind, *, scores: bool = True) -> int:
        """Return everything that a block keeps."""
        block, hidden = self.bytes_of[kind], self.shape.hidden_size
        linear = block.undivided + (block.linear - block.undivided) / self.tensor
        heads = self.shape.heads / (self.tensor if block.heads_split else 1)
        per_token = block.quadratic * heads * self.length if scores else 0.0
        return int(self.tokens * (hidden * linear + per_token))

    def kept_selectively(self, kind: BlockKind) -> int:
        """Return what a block keeps with selective recomputation."""
        if not self.style.flash:
            return self.kept_by(kind, scores=False)
        width = operator_bytes(self.shape, self.style, kind)
        return int(self.tokens * self.shape.hidden_size * width / self.tensor)

    def average(self, sizes: Mapping[BlockKind, int]) -> int:
        """Return the mean of these sizes over all blocks."""
        total = sum(sizes[kind] * count for kind, count in self.shape.kinds.items())
        return total // self.shape.layers


def activations_of(effective: Effective, facts: Facts) -> Activations:
    """Return the activations of one micro batch; none if the sequence length is unknown."""
    batch = _micro_batch(effective, facts)
    model, shape, length = facts.model, facts.architecture, facts.sequence_length
    if model is None or shape is None or length is None or batch is None:
        return Activations(assumed="no sequence length, micro batch or shape: none counted")
    style, recompute = style_of(effective, facts), recompute_of(effective, facts)
    tokens = length * batch // facts.degrees.sequence
    tensor, hidden, kinds = facts.degrees.tensor, shape.hidden_size, shape.kinds
    adapters = adapters_of(model)
    keeps_inputs = facts.base_weights is not None and BaseWeights(facts.base_weights).keeps_inputs
    bytes_of = {
        kind: block_bytes(shape, style, adapters, kind, keeps_inputs=keeps_inputs) for kind in kinds
    }
    common = bytes_of[commonest(shape)]
    blocks = _Blocks(shape, style, bytes_of, tokens, length, tensor)
    full = {kind: blocks.kept_by(kind) for kind in kinds}
    largest = max(full, key=lambda kind: full[kind])
    inner = inner_width(shape, largest) / hidden * (1 if style.lean else 2)
    kept, recomputed, on_host = blocks.average(full), 0, 0
    if recompute is Recompute.SELECTIVE:
        left = {kind: blocks.kept_selectively(kind) for kind in kinds}
        kept, recomputed = blocks.average(left), full[largest] - left[largest]
    elif recompute is Recompute.FULL:
        settings = effective.activation_checkpointing
        split = tensor if settings.partition_activations else 1
        # Only the input of the first block of an interval is kept; all are recomputed together.
        of_stage = -(-shape.layers // facts.degrees.pipeline)
        together = min(facts.execution.get(CHECKPOINT_INTERVAL, 1), of_stage)
        recomputed = full[largest] if together == 1 else kept * together
        kept = style.width * tokens * hidden // split // together
        if settings.cpu_checkpointing:
            kept, on_host = 0, kept * shape.layers
    rows = 2 * experts_at_work(shape) if facts.degrees.expert > 1 else 0
    forward, backward = loss_bytes(
        style.loss,
        shape,
        style.width,
        tokens,
        tensor,
        fp32_copy=not style.compiled,
        fp32_logits=upcasts_logits(shape.family, facts.releases.get("transformers")),
        # Fewer trained parameters than the head has: adapters and a frozen head.
        trains_head=model.trainable >= shape.vocab_size * hidden and adapters is None,
    )
    return Activations(
        blocks=shape.layers,
        per_block=kept,
        recomputed=recomputed,
        temporaries=int(tokens * hidden * style.width * (2 + max(inner, rows) / tensor)),
        dispatched=tokens * hidden * style.width * rows // tensor,
        selecting=2 * 4 * tokens * length * shape.extras.get("index_n_heads", 0),
        outside=2 * style.width * tokens * hidden + 8 * tokens,
        logits_forward=forward,
        logits_backward=backward,
        on_host=on_host,
        tokens=tokens,
        formula=formulas.RECOMPUTED
        if recompute is Recompute.FULL
        else formulas.of_blocks(shape, common.linear, common.quadratic),
        loss_formula=FORMULAS[style.loss],
    )


def _micro_batch(effective: Effective, facts: Facts) -> int | None:
    """Return the sequences of the resolved micro batch; else those of the config, or of the run."""
    micro = facts.training.micro_batch_size if facts.training else None
    written = effective.config.get("train_micro_batch_size_per_gpu")
    if effective.batch:
        micro = effective.batch.micro_batch
    elif isinstance(written, int) and written > 0:
        micro = written
    return None if micro is None else micro * facts.companions.sequences_per_sample
