"""GPT-Neo, GPT-J and GPT-NeoX (Pythia)."""

from dsconfig.facts.architectures.parts import Part, embedding, group, layer_norm, linear, stack
from dsconfig.facts.model import Architecture


def build(sizes: Architecture) -> Part:
    """The language model of whichever of the three ``family`` names."""
    return {"gpt_neo": neo, "gptj": gpt_j, "gpt_neox": neox}[sizes.family or ""](sizes)


def neo(sizes: Architecture) -> Part:
    hidden, inner = sizes.hidden_size, sizes.width_of_mlp
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
        feed_forward("mlp", "GPTNeoMLP", ("c_fc", "c_proj"), hidden, inner),
    )
    body = group(
        "transformer",
        "GPTNeoModel",
        embedding("wte", sizes.vocab_size, hidden),
        embedding("wpe", sizes.max_positions or 2048, hidden),
        stack("h", block, sizes.layers),
        layer_norm("ln_f", hidden),
    )
    tied = "transformer.wte.weight" if sizes.tied_embeddings else ""
    head = linear("lm_head", hidden, sizes.vocab_size, tied=tied)
    return group("", "GPTNeoForCausalLM", body, head)


def gpt_j(sizes: Architecture) -> Part:
    hidden, inner = sizes.hidden_size, sizes.width_of_mlp
    names = ("k_proj", "v_proj", "q_proj", "out_proj")
    block = group(
        "",
        "GPTJBlock",
        layer_norm("ln_1", hidden),
        group("attn", "GPTJAttention", *(linear(name, hidden, hidden) for name in names)),
        feed_forward("mlp", "GPTJMLP", ("fc_in", "fc_out"), hidden, inner),
    )
    body = group(
        "transformer",
        "GPTJModel",
        embedding("wte", sizes.vocab_size, hidden),
        stack("h", block, sizes.layers),
        layer_norm("ln_f", hidden),
    )
    head = linear("lm_head", hidden, sizes.vocab_size, bias=True)
    return group("", "GPTJForCausalLM", body, head)


def neox(sizes: Architecture) -> Part:
    hidden, inner = sizes.hidden_size, sizes.width_of_mlp
    block = group(
        "",
        "GPTNeoXLayer",
        layer_norm("input_layernorm", hidden),
        layer_norm("post_attention_layernorm", hidden),
        group(
            "attention",
            "GPTNeoXAttention",
            linear("query_key_value", hidden, 3 * hidden, bias=True),
            linear("dense", hidden, hidden, bias=True),
        ),
        feed_forward("mlp", "GPTNeoXMLP", ("dense_h_to_4h", "dense_4h_to_h"), hidden, inner),
    )
    body = group(
        "gpt_neox",
        "GPTNeoXModel",
        embedding("embed_in", sizes.vocab_size, hidden),
        stack("layers", block, sizes.layers),
        layer_norm("final_layer_norm", hidden),
    )
    return group("", "GPTNeoXForCausalLM", body, linear("lm_head", hidden, sizes.vocab_size))


def feed_forward(name: str, type_: str, names: tuple[str, str], hidden: int, inner: int) -> Part:
    """Two linears with biases, in and out."""
    widen, narrow = names
    return group(
        name,
        type_,
        linear(widen, hidden, inner, bias=True),
        linear(narrow, inner, hidden, bias=True),
    )
