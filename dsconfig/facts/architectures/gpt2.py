"""GPT-2: learned positions, LayerNorm, one fused query-key-value projection."""

from dsconfig.facts.architectures.parts import (
    Part,
    conv1d,
    embedding,
    group,
    layer_norm,
    linear,
    stack,
)
from dsconfig.facts.model import Architecture


def build(sizes: Architecture) -> Part:
    """The language model; its head shares the token embedding where ``tied_embeddings``."""
    hidden = sizes.hidden_size
    body = group(
        "transformer",
        "GPT2Model",
        embedding("wte", sizes.vocab_size, hidden),
        embedding("wpe", sizes.max_positions or 1024, hidden),
        stack("h", block(sizes), sizes.layers),
        layer_norm("ln_f", hidden),
    )
    tied = "transformer.wte.weight" if sizes.tied_embeddings else ""
    head = linear("lm_head", hidden, sizes.vocab_size, tied=tied)
    return group("", "GPT2LMHeadModel", body, head)


def block(sizes: Architecture) -> Part:
    hidden, inner = sizes.hidden_size, sizes.width_of_mlp
    return group(
        "",
        "GPT2Block",
        layer_norm("ln_1", hidden),
        group(
            "attn",
            "GPT2Attention",
            conv1d("c_attn", hidden, 3 * hidden),
            conv1d("c_proj", hidden, hidden),
        ),
        layer_norm("ln_2", hidden),
        group("mlp", "GPT2MLP", conv1d("c_fc", hidden, inner), conv1d("c_proj", inner, hidden)),
    )
