"""Models with different kinds of blocks: attention or a linear-time mixer.

A dialect per family has the module names; :mod:`dsconfig.facts.mixers` has the order of blocks.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from dsconfig.facts.architectures import deepseek
from dsconfig.facts.architectures.mixers import mixer_part
from dsconfig.facts.architectures.parts import (
    Part,
    embedding,
    group,
    language_model,
    linear,
    rms_norm,
    stack_of,
)
from dsconfig.facts.mixers import ATTENTION, BlockKind, Mixer, Mixing
from dsconfig.facts.model import Architecture, TensorFact


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """Module names of a family, the most common as defaults."""

    prefix: str
    body: str = "model"
    table: str = "embed_tokens"
    last_norm: str = "norm"
    norms: tuple[str, ...] = ("input_layernorm", "post_attention_layernorm")
    """Norms of a block; only the first if the block has a single layer."""
    norms_beside_attention: tuple[str, ...] = ()
    """Norms of blocks with attention, if named differently."""
    attention: str = "self_attn"
    output: str = "o_proj"
    head_norms: tuple[str, ...] = ()
    normalises_all_heads: bool = False
    gate: str = ""
    """``double``: the query projection includes the gate; else the name of a per-head gate."""
    output_bias: bool = False
    other: str = "mamba"
    """Name of the mixer module."""
    mlp: str = "mlp"
    maps: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")
    mlp_bias: bool = False
    experts: str = "mlp"
    router: str = "gate"
    shared: str = "shared_expert"


_MAMBA = Dialect(
    prefix="Mamba",
    body="backbone",
    table="embeddings",
    last_norm="norm_f",
    norms=("norm",),
    other="mixer",
)
_NEXT = Dialect(
    prefix="Qwen3Next",
    head_norms=("q_norm", "k_norm"),
    gate="double",
    other="linear_attn",
)
_AHEAD_OF_MLP = ("input_layernorm", "pre_ff_layernorm")
_FEEDS = Dialect(
    prefix="Bamba",
    last_norm="final_layernorm",
    norms=_AHEAD_OF_MLP,
    mlp="feed_forward",
    experts="feed_forward",
    router="router",
)
_LIQUID = Dialect(
    prefix="Lfm2",
    last_norm="embedding_norm",
    norms=("operator_norm", "ffn_norm"),
    output="out_proj",
    head_norms=("q_layernorm", "k_layernorm"),
    other="conv",
    mlp="feed_forward",
    maps=("w1", "w3", "w2"),
    experts="feed_forward",
)
DIALECTS: Mapping[str, Dialect] = {
    "qwen3_next": _NEXT,
    "qwen3_5_text": replace(_NEXT, prefix="Qwen3_5"),
    "qwen3_5_moe_text": replace(_NEXT, prefix="Qwen3_5Moe"),
    "olmo_hybrid": Dialect(
        prefix="OlmoHybrid",
        head_norms=("q_norm", "k_norm"),
        normalises_all_heads=True,
        norms_beside_attention=("post_attention_layernorm", "post_feedforward_layernorm"),
        other="linear_attn",
    ),
    "nemotron_h": replace(
        _MAMBA,
        prefix="NemotronH",
        body="model",
        attention="mixer",
        mlp="mixer",
        experts="mixer",
        shared="shared_experts",
    ),
    "bamba": _FEEDS,
    "falcon_h1": replace(_FEEDS, prefix="FalconH1"),
    "jamba": replace(_FEEDS, prefix="Jamba"),
    "granitemoehybrid": Dialect(
        prefix="GraniteMoeHybrid",
        mlp="shared_mlp",
        maps=("", "input_linear", "output_linear"),
        experts="block_sparse_moe",
        router="router",
        shared="shared_mlp",
    ),
    "lfm2": _LIQUID,
    "lfm2_moe": replace(_LIQUID, prefix="Lfm2Moe"),
    "lfm3": replace(
        _LIQUID,
        prefix="Lfm3",
        norms=("operator_norm", "ffn_norm", "post_operator_norm", "post_ffn_norm"),
        output="o_proj",
        head_norms=("q_norm", "k_norm"),
        gate="g_proj",
    ),
    "minimax": Dialect(prefix="MiniMax", other="self_attn"),
    "recurrent_gemma": Dialect(
        prefix="RecurrentGemma",
        last_norm="final_norm",
        norms=("temporal_pre_norm", "channel_pre_norm"),
        attention="temporal_block",
        output_bias=True,
        other="temporal_block",
        mlp="mlp_block",
        mlp_bias=True,
    ),
    "mamba": _MAMBA,
    "falcon_mamba": replace(_MAMBA, prefix="FalconMamba"),
    "mamba2": replace(_MAMBA, prefix="Mamba2"),
    "kimi_linear": Dialect(prefix="KimiLinear", other="self_attn", shared="shared_experts"),
    "longcat_flash": Dialect(prefix="LongcatFlash", router="router"),
}


def build(sizes: Architecture) -> Part:
    """Return the causal language model: embedding, blocks, final norm, head."""
    dialect, hidden = DIALECTS[sizes.family or ""], sizes.hidden_size
    one = {block: _block(sizes, dialect, block) for block in set(sizes.blocks)}
    body = group(
        dialect.body,
        f"{dialect.prefix}Model",
        embedding(dialect.table, sizes.vocab_size, hidden),
        stack_of("layers", tuple(one[block] for block in sizes.blocks)),
        rms_norm(dialect.last_norm, hidden),
    )
    return language_model(sizes, f"{dialect.prefix}ForCausalLM", body, dialect.table)


def _block(sizes: Architecture, dialect: Dialect, block: BlockKind) -> Part:
    hidden = sizes.hidden_size
    if len(block.mixers) > 1 and set(block.mixers) == {ATTENTION}:
        return _rounds(sizes, dialect, block)
    named = dialect.norms_beside_attention if block.attentions else ()
    is_alone = len(block.mixers) + block.dense + block.has_experts == 1
    return group(
        "",
        f"{dialect.prefix}DecoderLayer",
        *(_mixer(sizes, dialect, mixer) for mixer in block.mixers),
        *(_experts(sizes, dialect) if block.has_experts else ()),
        _feed_forward(sizes, dialect) if block.dense else None,
        *(rms_norm(name, hidden) for name in (named or dialect.norms)[: 1 if is_alone else None]),
    )


def _mixer(sizes: Architecture, dialect: Dialect, mixer: Mixer) -> Part:
    if mixer.kind is Mixing.ATTENTION:
        return attention(sizes, dialect)
    family, name = sizes.family or "", dialect.other
    return mixer_part(mixer, sizes.hidden_size, family, name, dialect.prefix)


def attention(sizes: Architecture, dialect: Dialect) -> Part:
    if sizes.extras.get("kv_lora_rank"):
        return deepseek.attention(sizes)
    hidden, width = sizes.hidden_size, sizes.width_of_head
    queries, keys = sizes.width_of_queries, sizes.width_of_keys
    gated = 2 if dialect.gate == "double" else 1
    gate = dialect.gate if gated == 1 else ""
    normed = (queries, keys) if dialect.normalises_all_heads else (width, width)
    return group(
        dialect.attention,
        f"{dialect.prefix}Attention",
        linear("q_proj", hidden, gated * queries),
        linear("k_proj", hidden, keys),
        linear("v_proj", hidden, keys),
        linear(dialect.output, queries, hidden, bias=dialect.output_bias),
        *(rms_norm(name, size) for name, size in zip(dialect.head_norms, normed, strict=False)),
        linear(gate, hidden, sizes.heads) if gate else None,
    )


def _feed_forward(sizes: Architecture, dialect: Dialect, name: str = "", width: int = 0) -> Part:
    hidden, bias = sizes.hidden_size, dialect.mlp_bias
    inner = width or (sizes.experts and sizes.dense_width) or sizes.width_of_mlp
    gate, up, down = dialect.maps
    maps = [linear(up, hidden, inner, bias=bias), linear(down, inner, hidden, bias=bias)]
    if sizes.gated_mlp and gate:
        maps.insert(0, linear(gate, hidden, inner, bias=bias))
    elif sizes.gated_mlp:
        maps[0] = linear(up, hidden, 2 * inner, bias=bias)  # gate and up fused
    return group(name or dialect.mlp, f"{dialect.prefix}MLP", *maps)


def _experts(sizes: Architecture, dialect: Dialect) -> tuple[Part, ...]:
    """The experts with their router, and the shared expert."""
    count, hidden = sizes.experts or 0, sizes.hidden_size
    inner = sizes.expert_size or sizes.width_of_mlp
    latent = sizes.extras.get("moe_latent_size") or hidden
    first = "gate_up_proj" if sizes.gated_mlp else "up_proj"
    weights = (
        TensorFact(first, (count, (2 if sizes.gated_mlp else 1) * inner, latent)),
        TensorFact("down_proj", (count, latent, inner)),
    )
    router = Part(dialect.router, "Router", (TensorFact("weight", (count, hidden)),))
    parts: list[Part] = [Part("experts", f"{dialect.prefix}Experts", weights), router]
    if latent != hidden:
        parts.append(linear("fc1_latent_proj", hidden, latent))
        parts.append(linear("fc2_latent_proj", latent, hidden))
    beside = None
    if sizes.shared_width:
        beside = _feed_forward(sizes, dialect, dialect.shared, sizes.shared_width)
        if dialect.shared != dialect.mlp:
            parts.append(beside)
            beside = None
    if dialect.gate == "double" and sizes.shared_width:
        parts.append(linear("shared_expert_gate", hidden, 1))
    mixture = group(dialect.experts, f"{dialect.prefix}SparseMoeBlock", *parts)
    return (mixture,) if beside is None else (mixture, beside)


def _rounds(sizes: Architecture, dialect: Dialect, block: BlockKind) -> Part:
    """Several rounds of attention and MLP, with experts in parallel (LongCat)."""
    hidden, count = sizes.hidden_size, sizes.experts or 0
    idle = int(sizes.extras.get("zero_expert_num") or 0)  # identity experts
    inner = sizes.expert_size or sizes.width_of_mlp
    every = range(len(block.mixers))
    weights = (
        TensorFact("gate_up_proj", (count + idle, 2 * inner, hidden)),
        TensorFact("down_proj", (count, hidden, inner)),
    )
    router = group(dialect.router, "Router", linear("classifier", hidden, count + idle))
    experts = Part("experts", f"{dialect.prefix}Experts", weights)

    def numbered(name: str, parts: list[Part]) -> Part:
        named = (replace(part, name=str(at)) for at, part in enumerate(parts))
        return Part(name, "ModuleList", children=tuple(named))

    return group(
        "",
        f"{dialect.prefix}DecoderLayer",
        group("mlp", f"{dialect.prefix}MoE", experts, router),
        numbered("self_attn", [attention(sizes, dialect) for _ in every]),
        numbered("mlps", [_feed_forward(sizes, dialect) for _ in every]),
        *(
            numbered(name, [rms_norm("", hidden) for _ in every])
            for name in ("input_layernorm", "post_attention_layernorm")
        ),
    )
