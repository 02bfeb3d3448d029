"""The byte-level GPT of the examples: learned positions, fused projection, a head of its own."""

from dsconfig.facts.architectures.parts import Part, embedding, group, layer_norm, linear, stack
from dsconfig.facts.model import Architecture


def build(sizes: Architecture) -> Part:
    """The model as ``examples/gpt.py`` builds it."""
    hidden = sizes.hidden_size
    return group(
        "",
        "GPT",
        embedding("tokens", sizes.vocab_size, hidden),
        embedding("positions", sizes.max_positions or 1024, hidden),
        stack("blocks", block(hidden, sizes.width_of_mlp), sizes.layers),
        layer_norm("norm", hidden),
        linear("head", hidden, sizes.vocab_size),
    )


def block(hidden: int, inner: int) -> Part:
    return group(
        "",
        "Block",
        layer_norm("attention_norm", hidden),
        linear("query_key_value", hidden, 3 * hidden, bias=True),
        linear("attention_out", hidden, hidden, bias=True),
        layer_norm("feed_forward_norm", hidden),
        linear("feed_forward_in", hidden, inner, bias=True),
        linear("feed_forward_out", inner, hidden, bias=True),
    )
