"""OPT: learned positions with an offset of two, LayerNorm before each half of a block."""

from dsconfig.facts.architectures.parts import Part, embedding, group, layer_norm, linear, stack
from dsconfig.facts.model import Architecture

POSITION_OFFSET = 2


def build(sizes: Architecture) -> Part:
    hidden = sizes.hidden_size
    decoder = group(
        "decoder",
        "OPTDecoder",
        embedding("embed_tokens", sizes.vocab_size, hidden),
        embedding("embed_positions", (sizes.max_positions or 2048) + POSITION_OFFSET, hidden),
        layer_norm("final_layer_norm", hidden),
        stack("layers", block(hidden, sizes.width_of_mlp), sizes.layers),
    )
    tied = "model.decoder.embed_tokens.weight" if sizes.tied_embeddings else ""
    head = linear("lm_head", hidden, sizes.vocab_size, tied=tied)
    return group("", "OPTForCausalLM", group("model", "OPTModel", decoder), head)


def block(hidden: int, inner: int) -> Part:
    names = ("k_proj", "v_proj", "q_proj", "out_proj")
    return group(
        "",
        "OPTDecoderLayer",
        group("self_attn", "OPTAttention", *(linear(n, hidden, hidden, bias=True) for n in names)),
        layer_norm("self_attn_layer_norm", hidden),
        linear("fc1", hidden, inner, bias=True),
        linear("fc2", inner, hidden, bias=True),
        layer_norm("final_layer_norm", hidden),
    )
