"""Bytes that autograd keeps for backward, by closed form.

Notation: s tokens, b samples, h hidden size, a heads, k key/value heads, d head size, f inner
width of the MLP, v vocabulary, w bytes of the model dtype. Everything is per rank.
"""

from dataclasses import dataclass
from enum import StrEnum

from dsconfig.cost.families import Family, Norm, family_of
from dsconfig.cost.loss import FORMULAS, Loss, loss_bytes, loss_of, upcasts_logits
from dsconfig.cost.mixers import KERNELS, bytes_without_scores
from dsconfig.facts.adapters import Adapters, adapters_of
from dsconfig.facts.facts import Facts
from dsconfig.facts.mixers import BlockKind
from dsconfig.facts.model import Architecture
from dsconfig.runtimes.effective import Effective
from dsconfig.schema.version import Version


class Recompute(StrEnum):
    """What backward computes again instead of keeping it from forward."""

    NONE = "none"
    SELECTIVE = "selective"
    """The core of attention, its scores (Korthikanti et al. 2022, arXiv:2205.05198). Flash
    attention keeps none of them: beside it, all but attention and every other matrix product,
    the policy of PyTorch's selective checkpointing."""
    FULL = "full"
    """Each block, from its input."""


CHECKPOINT_INTERVAL = "checkpoint_interval"
"""Among the training arguments: blocks between two checkpoints, where it is not each."""
_RECOMPUTE_NAMES = frozenset(each.value for each in Recompute)


@dataclass(frozen=True, slots=True, kw_only=True)
class Activations:
    """Bytes of one micro batch on one rank.

    ``per_block`` is kept from forward to backward (a checkpoint, with recomputation);
    ``recomputed`` is rebuilt in backward for one block at a time; ``temporaries`` are
    gradients of activations in the block being differentiated. ``logits_forward`` lives at
    the end of forward, ``logits_backward`` at the start of backward. ``on_host`` are
    checkpoints moved to host memory.
    """

    blocks: int = 0
    per_block: int = 0
    recomputed: int = 0
    temporaries: int = 0
    outside: int = 0
    logits_forward: int = 0
    logits_backward: int = 0
    on_host: int = 0
    in_flight: int = 1
    """Micro batches whose forward pass is kept at once: more than one in a pipeline."""
    tokens: int = 0
    assumed: str = ""
    formula: str = ""
    loss_formula: str = ""
    pointer: str = "/train_micro_batch_size_per_gpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockBytes:
    """One block, in bytes per s*b*h: ``linear`` + ``quadratic`` * a * s / h.

    ``whole`` is the part of ``linear`` that tensor parallelism does not divide.
    """

    linear: float
    quadratic: float
    whole: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """How the model is run: kernels and recomputation."""

    width: int = 2
    flash: bool = True
    fused: bool = False
    """Fused norm and MLP kernels (Liger and the like)."""
    loss: Loss = Loss.PLAIN
    compiled: bool = False
    """torch.compile: the loss reads 16-bit logits, without an fp32 copy of them; norms keep their
    input and the MLP no activated gate, which the partitioner has backward compute again."""
    dropout: bool | None = None
    """False: switched off, whatever the published config of the family says."""
    mask_width: int = 1
    """Bytes of a dropout mask element: 1 on CUDA; the model dtype on CPU."""

    @property
    def lean(self) -> bool:
        """Whether elementwise operations keep their input only."""
        return self.fused or self.compiled


def block_bytes(
    shape: Architecture,
    style: Style,
    adapters: Adapters | None = None,
    block: BlockKind | None = None,
) -> BlockBytes:
    """What one block keeps when nothing is recomputed: one of this kind, else of the commonest.

    With ``adapters`` it is frozen but for them: a frozen map does not keep what it reads.
    """
    block = block or commonest(shape)
    family = family_of(shape)
    dropout = family.dropout and style.dropout is not False
    scores_dropout = family.attention_dropout and style.dropout is not False
    frozen = adapters is not None
    norms = _norms(family, shape, style, block, frozen=frozen)
    attention = _attention(family, shape, style)
    attention -= _read_by_output(family, shape, style) if frozen else 0
    quadratic = 0.0
    if not style.flash:
        quadratic = _scores(family, style, scores_dropout)
    elif scores_dropout and style.mask_width > 1:
        # The CPU has no fused attention with dropout: scaled q and k, and the scores.
        queries = shape.width_of_queries / shape.hidden_size
        attention += style.width * (2 * queries + shape.width_of_keys / shape.hidden_size)
        quadratic = 12.0
    masks = places_of(block) * style.mask_width if dropout else 0
    return BlockBytes(
        linear=norms
        + attention * block.attentions
        + bytes_without_scores(block, style.width) / shape.hidden_size
        + _mlp(family, shape, style, block, frozen=frozen)
        + masks
        + (_adapted(family, shape, style, adapters) if adapters else 0),
        quadratic=quadratic * block.attentions,
        whole=norms + masks,
    )


def commonest(shape: Architecture) -> BlockKind:
    """The kind of block of which there are most."""
    return max(shape.kinds, key=lambda block: shape.kinds[block])


def places_of(block: BlockKind) -> int:
    """Norms ahead of a part of the block: one for mixers side by side, one for each in a row."""
    in_a_row = block.attentions == len(block.mixers) > 1
    mixing = len(block.mixers) if in_a_row else min(1, len(block.mixers))
    return mixing + (block.dense or int(block.has_experts))


def _attention(family: Family, shape: Architecture, style: Style) -> float:
    """Query, key, value and output; flash attention's log-sum-exp, fp32 per head."""
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
    return kept + lengths


def _read_by_output(family: Family, shape: Architecture, style: Style) -> float:
    """What the last map of attention alone keeps: flash attention keeps its own output too."""
    if style.flash and not family.fused_rotary:
        return 0.0
    read = shape.width_of_keys if style.flash else shape.width_of_queries
    return style.width * read / shape.hidden_size


def _adapted(family: Family, shape: Architecture, style: Style, adapters: Adapters) -> float:
    """Inputs and results of the first halves; with dropout its own copy and mask for each."""
    read = adapters.inputs + adapters.inner
    if _read_by_output(family, shape, style):
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
) -> float:
    """Norms with what they feed, and their fp32 scales (one per token and norm)."""
    places = places_of(block)
    kind = Norm.LAYER if style.lean else family.norm
    full, narrow = kind.kept_frozen if frozen else kind.value
    kept = 4 * full + style.width * narrow
    inputs = 1 if family.one_norm_input else places
    outputs = 0 if frozen else 1 if family.one_norm else places
    scales = 4 * places / shape.hidden_size
    total = kept * inputs + style.width * outputs + scales
    if family.post_norms:
        total += places * kept + scales
    if shape.query_key_norm:
        normed = shape.width_of_queries + shape.width_of_keys
        total += kept * block.attentions * normed / shape.hidden_size
    return total


def _mlp(
    family: Family, shape: Architecture, style: Style, block: BlockKind, *, frozen: bool
) -> float:
    copies = family.mlp_copies
    if style.lean and copies > 2:
        copies -= 1 if shape.gated_mlp else 3  # the activated gate is rebuilt in backward
    if frozen and copies > 1:
        copies -= 1  # what its last map reads; of a ReLU it is what the activation keeps
    kept = style.width * copies * _inner_width(shape, block) / shape.hidden_size
    if block.has_experts and shape.experts_per_token:
        kept += style.width * 2 * experts_at_work(shape)  # their inputs and outputs, a row each
        kept += 4 if family.router_in_fp32 and style.width == 2 else 0
    return kept


def _inner_width(shape: Architecture, block: BlockKind) -> int:
    """Inner width of a block's MLPs and of all experts that work on a token, together."""
    dense = (shape.experts and shape.dense_width) or shape.width_of_mlp
    if not block.has_experts:
        return block.dense * dense
    expert = shape.expert_size or shape.width_of_mlp
    # Where nobody says how many experts a token goes through: one, as an MLP.
    working = experts_at_work(shape) or 1
    return block.dense * dense + expert * working + shape.shared_width


def experts_at_work(shape: Architecture) -> int:
    """Experts whose matrices a token goes through."""
    every = family_of(shape).every_expert
    return (shape.experts if every else shape.experts_per_token) or 0


def _scores(family: Family, style: Style, dropout: bool) -> float:
    """Eager attention: probabilities, in fp32 first where the family casts, a cap, a mask."""
    cast = 4 if family.scores_in_fp32 and style.width == 2 else 0
    capped = style.width if family.softcap else 0
    masked = style.mask_width + style.width if dropout else 0
    return cast + style.width + capped + masked


def operator_bytes(shape: Architecture, style: Style, block: BlockKind) -> float:
    """What is kept per s*b*h when attention and every other matrix product are.

    The policy of torchtitan's and PyTorch's selective checkpointing: of query, key, value,
    output, gate, up and down the odd ones; of a plain MLP the up projection.
    """
    inner = _inner_width(shape, block) / shape.hidden_size
    gated = 1 if shape.gated_mlp and inner else 0
    queries = shape.width_of_queries / shape.hidden_size
    values = shape.width_of_keys / shape.hidden_size
    attention = style.width * (2 * queries + values) + 4 * shape.heads / shape.hidden_size
    mixed = bytes_without_scores(block, style.width) / shape.hidden_size
    return style.width * (1 + inner + gated) + mixed + attention * block.attentions


def style_of(effective: Effective, facts: Facts) -> Style:
    """Kernels as the training facts name them; flash attention where they say nothing."""
    arguments = facts.arguments
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
    )


FUSES_ATTENTION = Version(4, 36, 0)
"""The first release of transformers that computes attention in one kernel by itself, for Llama and
others (its notes: ``scaled_dot_product_attention`` by default)."""


def is_flash(facts: Facts) -> bool:
    """Whether attention keeps no scores: as the run says, else as transformers does by itself."""
    asked = facts.arguments.get("attn_implementation")
    if asked is not None:
        return str(asked) != "eager"
    release = facts.releases.get("transformers")
    if release is not None and Version.parse(release) < FUSES_ATTENTION:
        return False
    return facts.architecture is None or not family_of(facts.architecture).writes_scores


def is_recomputation_asked(facts: Facts) -> bool:
    """Whether the training run decides it: stronger than the block of a file."""
    return facts.arguments.get("gradient_checkpointing") is not None


def recompute_of(effective: Effective, facts: Facts) -> Recompute:
    """What the training run asks for, else what the block of the file says."""
    asked = facts.arguments.get("gradient_checkpointing")
    if isinstance(asked, str) and asked in _RECOMPUTE_NAMES:
        return Recompute(asked)
    if asked and "context_fn" in (facts.arguments.get("gradient_checkpointing_kwargs") or ()):
        return Recompute.SELECTIVE  # by what policy, only the script knows
    if asked is None:
        asked = effective.activation_checkpointing.enabled
    return Recompute.FULL if asked else Recompute.NONE


def activations_of(effective: Effective, facts: Facts) -> Activations:
    """Activations of one micro batch; nothing when the sequence length is unknown."""
    batch = _micro_batch(effective, facts)
    model, shape, length = facts.model, facts.architecture, facts.sequence_length
    if model is None or shape is None or length is None or batch is None:
        return Activations(assumed="no sequence length, micro batch or shape: none counted")
    style, recompute = style_of(effective, facts), recompute_of(effective, facts)
    tokens = length * batch // facts.sequence_parallel
    tensor, hidden, kinds = facts.tensor_parallel, shape.hidden_size, shape.kinds
    adapters = adapters_of(model)
    bytes_of = {kind: block_bytes(shape, style, adapters, kind) for kind in kinds}

    def kept_by(kind: BlockKind, *, scores: bool = True) -> int:
        """All that a block keeps of a micro batch, on one of the ranks that divide it."""
        block = bytes_of[kind]
        linear = block.whole + (block.linear - block.whole) / tensor
        quadratic = block.quadratic * shape.heads / tensor * length if scores else 0.0
        return int(tokens * (hidden * linear + quadratic))

    whole_blocks = {kind: kept_by(kind) for kind in kinds}
    full = sum(whole_blocks[kind] * count for kind, count in kinds.items()) // shape.layers
    largest = max(whole_blocks, key=lambda kind: whole_blocks[kind])
    inner = _inner_width(shape, largest) / hidden * (1 if style.lean else 2)
    temporaries = int(tokens * hidden * style.width * (2 + inner / tensor))
    kept, again, on_host = full, 0, 0
    if recompute is Recompute.SELECTIVE:
        left = {
            kind: int(tokens * hidden * operator_bytes(shape, style, kind) / tensor)
            if style.flash
            else kept_by(kind, scores=False)
            for kind in kinds
        }
        kept = sum(left[kind] * count for kind, count in kinds.items()) // shape.layers
        again = whole_blocks[largest] - left[largest]
    elif recompute is Recompute.FULL:
        settings = effective.activation_checkpointing
        split = tensor if settings.partition_activations else 1
        # Of so many blocks the input of the first is kept, and all are rebuilt together.
        of_stage = -(-shape.layers // facts.pipeline_parallel)
        together = min(facts.arguments.get(CHECKPOINT_INTERVAL, 1), of_stage)
        kept = style.width * tokens * hidden // split // together
        again = whole_blocks[largest] if together == 1 else full * together
        if settings.cpu_checkpointing:
            kept, on_host = 0, kept * shape.layers
    forward, backward = loss_bytes(
        style.loss,
        shape,
        style.width,
        tokens,
        tensor,
        fp32_copy=not style.compiled,
        fp32_logits=upcasts_logits(shape.family, facts.releases.get("transformers")),
        # Fewer trained parameters than the head has: adapters, and a head that stays as it is.
        trains_head=model.trainable >= shape.vocab_size * hidden and adapters is None,
    )
    return Activations(
        blocks=shape.layers,
        per_block=kept,
        recomputed=again,
        temporaries=temporaries,
        outside=2 * style.width * tokens * hidden + 8 * tokens,
        logits_forward=forward,
        logits_backward=backward,
        on_host=on_host,
        tokens=tokens,
        formula=_formula(shape, bytes_of[commonest(shape)], recompute),
        loss_formula=FORMULAS[style.loss],
    )


def _micro_batch(effective: Effective, facts: Facts) -> int | None:
    """As settled; else as the config says, or the run."""
    if effective.batch:
        return effective.batch.micro_batch
    written = effective.config.get("train_micro_batch_size_per_gpu")
    if isinstance(written, int) and written > 0:
        return written
    return facts.training.micro_batch_size if facts.training else None


def _formula(shape: Architecture, block: BlockBytes, recompute: Recompute) -> str:
    if recompute is Recompute.FULL:
        return "2sbh per block, one block rebuilt"
    scores = f" + {block.quadratic:.0f}as/h" if block.quadratic else ""
    if len(shape.kinds) == 1:
        said = f"sbh({block.linear:.1f}{scores}) per block"
    else:
        said = f"sbh({block.linear:.1f}{scores}) per block of the commonest kind"
    kernels = dict.fromkeys(
        KERNELS[mixer.kind]
        for kind in shape.kinds
        for mixer in kind.mixers
        if mixer.kind in KERNELS
    )
    return f"{said}, with the kernels of {', '.join(kernels)}" if kernels else said


def latent_attention(shape: Architecture, width: int, *, flash: bool) -> float:
    """Bytes per token and hidden unit, with ``width`` bytes an element.

    Queries and keys have their rotary and their other part put together: copies. Values are a
    view of what the up projection makes, whose other half stays with them under flash attention;
    written out, attention copies them. The output is copied for the last projection. Each low
    rank keeps its norm's fp32 input, normalised value and output. Held to transformers 5.23.
    """
    sizes = shape.extras
    rotary, plain = int(sizes["qk_rope_head_dim"]), int(sizes["qk_nope_head_dim"])
    value = int(sizes["v_head_dim"])
    per_head = 2 * (rotary + plain) + (plain + 3 * value if flash else 2 * value)
    ranks = [int(sizes[name]) for name in ("kv_lora_rank", "q_lora_rank") if sizes.get(name)]
    low = sum((4 + 2 * width) * rank + 4 for rank in ranks)
    return (width * shape.heads * per_head + low) / shape.hidden_size
