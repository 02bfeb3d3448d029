"""BLOOM, Falcon and Phi: one fused projection in the first two, biases in the first and last."""

from dsconfig.facts.architectures.eleuther import feed_forward
from dsconfig.facts.architectures.parts import Part, embedding, group, layer_norm, linear, stack
from dsconfig.facts.model import Architecture


def build(sizes: Architecture) -> Part:
    """The language model of whichever of the three ``family`` names."""
    return {"bloom": bloom, "falcon": falcon, "phi": phi}[sizes.family or ""](sizes)


def bloom(sizes: Architecture) -> Part:
    hidden, inner = sizes.hidden_size, sizes.width_of_mlp
    block = group(
        "",
        "BloomBlock",
        layer_norm("input_layernorm", hidden),
        group(
            "self_attention",
            "BloomAttention",
            linear("query_key_value", hidden, 3 * hidden, bias=True),
            linear("dense", hidden, hidden, bias=True),
        ),
        layer_norm("post_attention_layernorm", hidden),
        feed_forward("mlp", "BloomMLP", ("dense_h_to_4h", "dense_4h_to_h"), hidden, inner),
    )
    body = group(
        "transformer",
        "BloomModel",
        embedding("word_embeddings", sizes.vocab_size, hidden),
        layer_norm("word_embeddings_layernorm", hidden),
        stack("h", block, sizes.layers),
        layer_norm("ln_f", hidden),
    )
    return group("", "BloomForCausalLM", body, _head(sizes, "transformer.word_embeddings.weight"))


def falcon(sizes: Architecture) -> Part:
    hidden, inner = sizes.hidden_size, sizes.width_of_mlp
    keys = (sizes.kv_heads or sizes.heads) * sizes.width_of_head
    # With more than one key-value head Falcon has a norm before each of its parallel halves.
    norms = ("ln_attn", "ln_mlp") if (sizes.kv_heads or 1) > 1 else ("input_layernorm",)
    block = group(
        "",
        "FalconDecoderLayer",
        group(
            "self_attention",
            "FalconAttention",
            linear("query_key_value", hidden, hidden + 2 * keys),
            linear("dense", hidden, hidden),
        ),
        group(
            "mlp",
            "FalconMLP",
            linear("dense_h_to_4h", hidden, inner),
            linear("dense_4h_to_h", inner, hidden),
        ),
        *(layer_norm(name, hidden) for name in norms),
    )
    body = group(
        "transformer",
        "FalconModel",
        embedding("word_embeddings", sizes.vocab_size, hidden),
        stack("h", block, sizes.layers),
        layer_norm("ln_f", hidden),
    )
    return group("", "FalconForCausalLM", body, _head(sizes, "transformer.word_embeddings.weight"))


def phi(sizes: Architecture) -> Part:
    hidden, inner = sizes.hidden_size, sizes.width_of_mlp
    names = ("q_proj", "k_proj", "v_proj", "dense")
    block = group(
        "",
        "PhiDecoderLayer",
        group("self_attn", "PhiAttention", *(linear(n, hidden, hidden, bias=True) for n in names)),
        feed_forward("mlp", "PhiMLP", ("fc1", "fc2"), hidden, inner),
        layer_norm("input_layernorm", hidden),
    )
    body = group(
        "model",
        "PhiModel",
        embedding("embed_tokens", sizes.vocab_size, hidden),
        stack("layers", block, sizes.layers),
        layer_norm("final_layernorm", hidden),
    )
    head = linear("lm_head", hidden, sizes.vocab_size, bias=True)
    return group("", "PhiForCausalLM", body, head)


def _head(sizes: Architecture, embedding_name: str) -> Part:
    tied = embedding_name if sizes.tied_embeddings else ""
    return linear("lm_head", sizes.hidden_size, sizes.vocab_size, tied=tied)
