"""Llama and its relatives: Mistral, Qwen 2 and 3, Gemma 2 and 3, Phi-3, SmolLM3."""

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

CLASS_PREFIX = {
    "llama": "Llama",
    "mistral": "Mistral",
    "qwen2": "Qwen2",
    "qwen3": "Qwen3",
    "gemma2": "Gemma2",
    "gemma3_text": "Gemma3",
    "smollm3": "SmolLM3",
    "phi3": "Phi3",
    "mixtral": "Mixtral",
    "qwen3_moe": "Qwen3Moe",
}


def build(sizes: Architecture) -> Part:
    """Return the causal language model: embedding, blocks, final norm, head."""
    prefix, hidden = CLASS_PREFIX[sizes.family or "llama"], sizes.hidden_size
    body = group(
        "model",
        f"{prefix}Model",
        embedding("embed_tokens", sizes.vocab_size, hidden),
        *per_layer_inputs(sizes),
        stack_of("layers", blocks(sizes, prefix)),
        rms_norm("norm", hidden),
    )
    return language_model(sizes, f"{prefix}ForCausalLM", body, "embed_tokens")


def per_layer_inputs(sizes: Architecture) -> tuple[Part, ...]:
    """Per-layer embeddings and their projection (Gemma 3n and 4)."""
    width = sizes.extras.get("hidden_size_per_layer_input")
    if not width:
        return ()
    rows, every = sizes.extras.get("vocab_size_per_layer_input"), sizes.layers * width
    return (
        embedding("embed_tokens_per_layer", rows or sizes.vocab_size, every),
        linear("per_layer_model_projection", sizes.hidden_size, every),
    )


def blocks(sizes: Architecture, prefix: str) -> tuple[Part, ...]:
    """Return the blocks in order; MoE models may have dense MLPs in some."""
    dense = block(sizes, prefix, feed_forward(sizes, prefix))
    if not sizes.experts:
        return (dense,) * sizes.layers
    dense = block(sizes, prefix, feed_forward(sizes, prefix, width=sizes.dense_width or 0))
    mixed = block(sizes, prefix, experts(sizes, prefix))
    return tuple(dense if at in sizes.dense_blocks else mixed for at in range(sizes.layers))


def block(sizes: Architecture, prefix: str, inner: Part) -> Part:
    hidden = sizes.hidden_size
    sandwich = sizes.family in ("gemma2", "gemma3_text")
    return group(
        "",
        f"{prefix}DecoderLayer",
        attention(sizes, prefix),
        inner,
        rms_norm("input_layernorm", hidden),
        rms_norm("post_attention_layernorm", hidden),
        rms_norm("pre_feedforward_layernorm", hidden) if sandwich else None,
        rms_norm("post_feedforward_layernorm", hidden) if sandwich else None,
    )


def attention(sizes: Architecture, prefix: str) -> Part:
    hidden, width = sizes.hidden_size, sizes.width_of_head
    queries, keys = sizes.width_of_queries, sizes.width_of_keys
    output = linear("o_proj", queries, hidden)
    if sizes.family == "phi3":
        fused = linear("qkv_proj", hidden, queries + 2 * keys)
        return group("self_attn", f"{prefix}Attention", output, fused)
    bias = sizes.family == "qwen2"
    return group(
        "self_attn",
        f"{prefix}Attention",
        linear("q_proj", hidden, queries, bias=bias),
        linear("k_proj", hidden, keys, bias=bias),
        linear("v_proj", hidden, keys, bias=bias),
        output,
        rms_norm("q_norm", width) if sizes.query_key_norm else None,
        rms_norm("k_norm", width) if sizes.query_key_norm else None,
    )


def feed_forward(sizes: Architecture, prefix: str, name: str = "mlp", width: int = 0) -> Part:
    hidden, inner = sizes.hidden_size, width or sizes.width_of_mlp
    if sizes.family == "phi3":
        fused = linear("gate_up_proj", hidden, 2 * inner)
        return group(name, f"{prefix}MLP", fused, linear("down_proj", inner, hidden))
    return group(
        name,
        f"{prefix}MLP",
        linear("gate_proj", hidden, inner) if sizes.gated_mlp else None,
        linear("up_proj", hidden, inner),
        linear("down_proj", inner, hidden),
    )


def experts(sizes: Architecture, prefix: str) -> Part:
    """Mixture of experts, with the experts' weights in two 3-D tensors."""
    router = TensorFact("weight", (sizes.experts or 0, sizes.hidden_size))
    shared = None
    if sizes.shared_width:
        shared = feed_forward(sizes, prefix, "shared_expert", sizes.shared_width)
    return group(
        "mlp",
        f"{prefix}SparseMoeBlock",
        Part("gate", f"{prefix}TopKRouter", (router,)),
        fused_experts(sizes, prefix),
        shared,
    )


def fused_experts(sizes: Architecture, prefix: str) -> Part:
    count, hidden = sizes.experts or 0, sizes.hidden_size
    inner = sizes.expert_size or sizes.width_of_mlp
    first = 2 * inner if sizes.gated_mlp else inner
    weights = (
        TensorFact("gate_up_proj", (count, first, hidden)),
        TensorFact("down_proj", (count, hidden, inner)),
    )
    return Part("experts", f"{prefix}Experts", weights)
