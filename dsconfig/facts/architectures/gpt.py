"""GPT-2 and its successors with LayerNorm: OPT, GPT-Neo, GPT-J, GPT-NeoX (Pythia), BLOOM, Falcon,
Phi and the byte-level GPT of the examples."""

from dsconfig.facts.architectures.parts import (
    Part,
    conv1d,
    embedding,
    group,
    language_model,
    layer_norm,
    linear,
    stack,
)
from dsconfig.facts.model import Architecture

OPT_POSITION_OFFSET = 2


def build(sizes: Architecture) -> Part:
    """Return the language model of ``sizes.family``."""
    return _FAMILIES[sizes.family or ""](sizes)


def example(sizes: Architecture) -> Part:
    """The model of ``examples/gpt.py``: a fused QKV projection and an untied head."""
    hidden, inner = sizes.hidden_size, sizes.width_of_mlp
    block = group(
        "",
        "Block",
        layer_norm("attention_norm", hidden),
        linear("query_key_value", hidden, 3 * hidden, bias=True),
        linear("attention_out", hidden, hidden, bias=True),
        layer_norm("feed_forward_norm", hidden),
        linear("feed_forward_in", hidden, inner, bias=True),
        linear("feed_forward_out", inner, hidden, bias=True),
    )
    return group(
        "",
        "GPT",
        embedding("tokens", sizes.vocab_size, hidden),
        embedding("positions", sizes.max_positions or 1024, hidden),
        stack("blocks", block, sizes.layers),
        layer_norm("norm", hidden),
        linear("head", hidden, sizes.vocab_size),
    )


def gpt2(sizes: Architecture) -> Part:
    hidden, inner = sizes.hidden_size, sizes.width_of_mlp
    projections = conv1d("c_attn", hidden, 3 * hidden), conv1d("c_proj", hidden, hidden)
    block = group(
        "",
        "GPT2Block",
        layer_norm("ln_1", hidden),
        group("attn", "GPT2Attention", *projections),
        layer_norm("ln_2", hidden),
        group("mlp", "GPT2MLP", conv1d("c_fc", hidden, inner), conv1d("c_proj", inner, hidden)),
    )
    body = group(
        "transformer",
        "GPT2Model",
        embedding("wte", sizes.vocab_size, hidden),
        embedding("wpe", sizes.max_positions or 1024, hidden),
        stack("h", block, sizes.layers),
        layer_norm("ln_f", hidden),
    )
    return language_model(sizes, "GPT2LMHeadModel", body, "wte")


def opt(sizes: Architecture) -> Part:
    """The learned positions have an offset of two."""
    hidden, inner = sizes.hidden_size, sizes.width_of_mlp
    names = ("k_proj", "v_proj", "q_proj", "out_proj")
    block = group(
        "",
        "OPTDecoderLayer",
        group("self_attn", "OPTAttention", *(linear(n, hidden, hidden, bias=True) for n in names)),
        layer_norm("self_attn_layer_norm", hidden),
        linear("fc1", hidden, inner, bias=True),
        linear("fc2", inner, hidden, bias=True),
        layer_norm("final_layer_norm", hidden),
    )
    decoder = group(
        "decoder",
        "OPTDecoder",
        embedding("embed_tokens", sizes.vocab_size, hidden),
        embedding("embed_positions", (sizes.max_positions or 2048) + OPT_POSITION_OFFSET, hidden),
        layer_norm("final_layer_norm", hidden),
        stack("layers", block, sizes.layers),
    )
    body = group("model", "OPTModel", decoder)
    return language_model(sizes, "OPTForCausalLM", body, "decoder.embed_tokens")


def neo(sizes: Architecture) -> Part:
    hidden = sizes.hidden_size
    attention = group(
        "attention",
        "GPTNeoSelfAttention",
        *(linear(name, hidden, hidden) for name in ("k_proj", "v_proj", "q_proj")),
        linear("out_proj", hidden, hidden, bias=True),
    )
    block = group(
        "",
        "GPTNeoBlock",
        layer_norm("ln_1", hidden),
        group("attn", "GPTNeoAttention", attention),
        layer_norm("ln_2", hidden),
        feed_forward(sizes, "GPTNeoMLP", "c_fc", "c_proj"),
    )
    body = group(
        "transformer",
        "GPTNeoModel",
        embedding("wte", sizes.vocab_size, hidden),
        embedding("wpe", sizes.max_positions or 2048, hidden),
        stack("h", block, sizes.layers),
        layer_norm("ln_f", hidden),
    )
    return language_model(sizes, "GPTNeoForCausalLM", body, "wte")


def gpt_j(sizes: Architecture) -> Part:
    hidden = sizes.hidden_size
    names = ("k_proj", "v_proj", "q_proj", "out_proj")
    block = group(
        "",
        "GPTJBlock",
        layer_norm("ln_1", hidden),
        group("attn", "GPTJAttention", *(linear(name, hidden, hidden) for name in names)),
        feed_forward(sizes, "GPTJMLP", "fc_in", "fc_out"),
    )
    body = group(
        "transformer",
        "GPTJModel",
        embedding("wte", sizes.vocab_size, hidden),
        stack("h", block, sizes.layers),
        layer_norm("ln_f", hidden),
    )
    return language_model(sizes, "GPTJForCausalLM", body, bias=True)


def neox(sizes: Architecture) -> Part:
    hidden = sizes.hidden_size
    block = group(
        "",
        "GPTNeoXLayer",
        layer_norm("input_layernorm", hidden),
        layer_norm("post_attention_layernorm", hidden),
        fused_attention("attention", "GPTNeoXAttention", hidden, hidden),
        feed_forward(sizes, "GPTNeoXMLP", "dense_h_to_4h", "dense_4h_to_h"),
    )
    body = group(
        "gpt_neox",
        "GPTNeoXModel",
        embedding("embed_in", sizes.vocab_size, hidden),
        stack("layers", block, sizes.layers),
        layer_norm("final_layer_norm", hidden),
    )
    return language_model(sizes, "GPTNeoXForCausalLM", body)


def bloom(sizes: Architecture) -> Part:
    hidden = sizes.hidden_size
    block = group(
        "",
        "BloomBlock",
        layer_norm("input_layernorm", hidden),
        fused_attention("self_attention", "BloomAttention", hidden, hidden),
        layer_norm("post_attention_layernorm", hidden),
        feed_forward(sizes, "BloomMLP", "dense_h_to_4h", "dense_4h_to_h"),
    )
    body = group(
        "transformer",
        "BloomModel",
        embedding("word_embeddings", sizes.vocab_size, hidden),
        layer_norm("word_embeddings_layernorm", hidden),
        stack("h", block, sizes.layers),
        layer_norm("ln_f", hidden),
    )
    return language_model(sizes, "BloomForCausalLM", body, "word_embeddings")


def falcon(sizes: Architecture) -> Part:
    """With more than one key-value head, each parallel branch has its own norm."""
    hidden, keys = sizes.hidden_size, sizes.width_of_keys
    norms = ("ln_attn", "ln_mlp") if (sizes.kv_heads or 1) > 1 else ("input_layernorm",)
    block = group(
        "",
        "FalconDecoderLayer",
        fused_attention("self_attention", "FalconAttention", hidden, keys, bias=False),
        feed_forward(sizes, "FalconMLP", "dense_h_to_4h", "dense_4h_to_h", bias=False),
        *(layer_norm(name, hidden) for name in norms),
    )
    body = group(
        "transformer",
        "FalconModel",
        embedding("word_embeddings", sizes.vocab_size, hidden),
        stack("h", block, sizes.layers),
        layer_norm("ln_f", hidden),
    )
    return language_model(sizes, "FalconForCausalLM", body, "word_embeddings")


def phi(sizes: Architecture) -> Part:
    hidden = sizes.hidden_size
    names = ("q_proj", "k_proj", "v_proj", "dense")
    block = group(
        "",
        "PhiDecoderLayer",
        group("self_attn", "PhiAttention", *(linear(n, hidden, hidden, bias=True) for n in names)),
        feed_forward(sizes, "PhiMLP", "fc1", "fc2"),
        layer_norm("input_layernorm", hidden),
    )
    body = group(
        "model",
        "PhiModel",
        embedding("embed_tokens", sizes.vocab_size, hidden),
        stack("layers", block, sizes.layers),
        layer_norm("final_layernorm", hidden),
    )
    return language_model(sizes, "PhiForCausalLM", body, bias=True)


_FAMILIES = {
    "gpt": example,
    "gpt2": gpt2,
    "opt": opt,
    "gpt_neo": neo,
    "gptj": gpt_j,
    "gpt_neox": neox,
    "bloom": bloom,
    "falcon": falcon,
    "phi": phi,
}


def fused_attention(name: str, type_: str, hidden: int, keys: int, *, bias: bool = True) -> Part:
    """Attention with a fused QKV projection."""
    together = linear("query_key_value", hidden, hidden + 2 * keys, bias=bias)
    return group(name, type_, together, linear("dense", hidden, hidden, bias=bias))


def feed_forward(
    sizes: Architecture, type_: str, widen: str, narrow: str, *, bias: bool = True
) -> Part:
    """MLP of two linear layers."""
    hidden, inner = sizes.hidden_size, sizes.width_of_mlp
    maps = linear(widen, hidden, inner, bias=bias), linear(narrow, inner, hidden, bias=bias)
    return group("mlp", type_, *maps)
