"""gpt-oss: grouped-query attention with sinks, experts in every block, biases everywhere."""

from dsconfig.facts.architectures.parts import (
    Part,
    embedding,
    group,
    language_model,
    linear,
    rms_norm,
    stack,
)
from dsconfig.facts.model import Architecture, TensorFact

PREFIX = "GptOss"


def build(sizes: Architecture) -> Part:
    """Return the causal language model: embedding, blocks, final norm, head."""
    hidden = sizes.hidden_size
    body = group(
        "model",
        f"{PREFIX}Model",
        embedding("embed_tokens", sizes.vocab_size, hidden),
        stack("layers", block(sizes), sizes.layers),
        rms_norm("norm", hidden),
    )
    return language_model(sizes, f"{PREFIX}ForCausalLM", body)


def block(sizes: Architecture) -> Part:
    """One decoder layer."""
    hidden = sizes.hidden_size
    return group(
        "",
        f"{PREFIX}DecoderLayer",
        attention(sizes),
        experts(sizes),
        rms_norm("input_layernorm", hidden),
        rms_norm("post_attention_layernorm", hidden),
    )


def attention(sizes: Architecture) -> Part:
    """The sink is one additional score per head, without a token."""
    hidden = sizes.hidden_size
    queries, keys = sizes.width_of_queries, sizes.width_of_keys
    return Part(
        "self_attn",
        f"{PREFIX}Attention",
        (TensorFact("sinks", (sizes.heads,)),),
        (
            linear("q_proj", hidden, queries, bias=True),
            linear("k_proj", hidden, keys, bias=True),
            linear("v_proj", hidden, keys, bias=True),
            linear("o_proj", queries, hidden, bias=True),
        ),
    )


def experts(sizes: Architecture) -> Part:
    """Expert weights in two 3-D tensors, their biases in two more."""
    count, hidden = sizes.experts or 0, sizes.hidden_size
    inner = sizes.expert_size or sizes.width_of_mlp
    router = (TensorFact("weight", (count, hidden)), TensorFact("bias", (count,)))
    weights = (
        TensorFact("gate_up_proj", (count, hidden, 2 * inner)),
        TensorFact("gate_up_proj_bias", (count, 2 * inner)),
        TensorFact("down_proj", (count, inner, hidden)),
        TensorFact("down_proj_bias", (count, hidden)),
    )
    return group(
        "mlp",
        f"{PREFIX}MLP",
        Part("router", f"{PREFIX}TopKRouter", router),
        Part("experts", f"{PREFIX}Experts", weights),
    )
