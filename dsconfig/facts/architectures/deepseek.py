"""DeepSeek-V2 and V3, Kimi K2: multi-head latent attention, dense blocks, then experts."""

from dsconfig.facts.architectures.llama import feed_forward, fused_experts
from dsconfig.facts.architectures.parts import (
    Part,
    embedding,
    group,
    language_model,
    linear,
    rms_norm,
    stack_of,
)
from dsconfig.facts.model import Architecture, TensorFact

PREFIX = "DeepseekV3"


def build(sizes: Architecture) -> Part:
    hidden = sizes.hidden_size
    dense = block(sizes, feed_forward(sizes, PREFIX, width=sizes.dense_width or 0))
    blocks = (dense,) * sizes.layers
    if sizes.experts:
        mixed, without = block(sizes, mixture(sizes)), frozenset(sizes.dense_blocks)
        blocks = tuple(dense if at in without else mixed for at in range(sizes.layers))
    body = group(
        "model",
        f"{PREFIX}Model",
        embedding("embed_tokens", sizes.vocab_size, hidden),
        stack_of("layers", blocks),
        rms_norm("norm", hidden),
    )
    return language_model(sizes, f"{PREFIX}ForCausalLM", body, "embed_tokens")


def block(sizes: Architecture, inner: Part) -> Part:
    return group(
        "",
        f"{PREFIX}DecoderLayer",
        attention(sizes),
        inner,
        rms_norm("input_layernorm", sizes.hidden_size),
        rms_norm("post_attention_layernorm", sizes.hidden_size),
    )


def attention(sizes: Architecture) -> Part:
    """Low-rank projection with a norm for keys and values, usually for queries as well."""
    hidden, heads, more = sizes.hidden_size, sizes.heads, sizes.extras
    narrow_q, narrow_kv = more.get("q_lora_rank"), more["kv_lora_rank"]
    rope, nope, value = more["qk_rope_head_dim"], more["qk_nope_head_dim"], more["v_head_dim"]
    queries = [linear("q_proj", hidden, heads * (rope + nope))]
    if narrow_q:
        queries = [
            linear("q_a_proj", hidden, narrow_q),
            rms_norm("q_a_layernorm", narrow_q),
            linear("q_b_proj", narrow_q, heads * (rope + nope)),
        ]
    return group(
        "self_attn",
        f"{PREFIX}Attention",
        *queries,
        linear("kv_a_proj_with_mqa", hidden, narrow_kv + rope),
        rms_norm("kv_a_layernorm", narrow_kv),
        linear("kv_b_proj", narrow_kv, heads * (nope + value)),
        linear("o_proj", heads * value, hidden),
    )


def mixture(sizes: Architecture) -> Part:
    router = TensorFact("weight", (sizes.experts or 0, sizes.hidden_size))
    shared = None
    if sizes.shared_width:
        shared = feed_forward(sizes, PREFIX, "shared_experts", sizes.shared_width)
    return group(
        "mlp",
        f"{PREFIX}MoE",
        fused_experts(sizes, PREFIX),
        Part("gate", f"{PREFIX}TopkRouter", (router,)),
        shared,
    )
