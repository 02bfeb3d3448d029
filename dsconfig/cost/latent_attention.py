"""Multi-head latent attention (arXiv:2405.04434, DeepSeek-V2): what autograd keeps of it."""

from dsconfig.facts.model import Architecture


def latent_attention(shape: Architecture, width: int, *, flash: bool) -> float:
    """Bytes per token and hidden unit, with ``width`` bytes an element.

    Queries and keys have their rotary and their other part put together: copies. Values are a
    view of what the up projection makes, whose other half stays with them under flash attention;
    written out, attention copies them. The output is copied for the last projection. Each low
    rank keeps its norm's fp32 input, normalised value and output. Held to transformers 5.23.
    """
    sizes = shape.extras
    rotary, plain = int(sizes["qk_rope_head_dim"]), int(sizes["qk_nope_head_dim"])
    value = int(sizes["v_head_dim"])
    per_head = 2 * (rotary + plain) + (plain + 3 * value if flash else 2 * value)
    ranks = [int(sizes[name]) for name in ("kv_lora_rank", "q_lora_rank") if sizes.get(name)]
    low = sum((4 + 2 * width) * rank + 4 for rank in ranks)
    return (width * shape.heads * per_head + low) / shape.hidden_size
