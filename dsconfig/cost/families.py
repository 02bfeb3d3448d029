"""What a block of each model family keeps for backward.

Read from the modeling code of transformers and checked with saved-tensor hooks. A family that is
not listed is treated as Llama-like (gated) or Starcoder2-like (plain MLP).
"""

from dataclasses import dataclass
from enum import Enum

from dsconfig.facts.model import Architecture


class Norm(Enum):
    """Norm implementations: (fp32 copies kept, 16-bit copies kept), without the output."""

    LAYER = (0, 1)
    """One fused kernel: keeps its input."""
    RMS = (1, 1)
    """Eager: the fp32 input and the normalized value in the model dtype."""
    GEMMA = (2, 0)
    """Eager, entirely in fp32: input and normalized value."""

    @property
    def kept_frozen(self) -> tuple[int, int]:
        """Return the same for a frozen norm weight: without the normalized value."""
        return (0, 1) if self is Norm.LAYER else (1, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """``mlp_copies``: tensors of the MLP's inner width kept per block.

    gated: gate, activated gate, up, product (4). ReLU: its output (1). GELU: input and output (2).
    Eager tanh GELU: input, half of it, tanh, 1 + tanh, output (5).
    """

    norm: Norm = Norm.RMS
    mlp_copies: int = 4
    post_norms: bool = False
    """Two more norms, after attention and MLP, whose output feeds no matrix product."""
    every_expert: bool = False
    """Every token goes through every expert, also unselected ones."""
    gated_attention: bool = False
    """The attention output is multiplied by a gate of the same width."""
    router_in_fp32: bool = False
    """The router reads an fp32 copy of the hidden states."""
    one_norm_input: bool = False
    """Attention and MLP run in parallel on the same residual: one input is kept."""
    one_norm: bool = False
    """Parallel, and sharing one norm's output."""
    fused_rotary: bool = False
    """One qkv projection, then rotary embedding: q and k are copies in addition to the full qkv."""
    writes_scores: bool = False
    """transformers has no SDPA for it: eager unless FlashAttention is requested (``_supports_sdpa``
    of 5.23)."""
    has_flash: bool = True
    """Whether FlashAttention is available (``_supports_flash_attn``)."""
    softcap: bool = False
    scores_in_fp32: bool = True
    dropout: bool = False
    """After attention and MLP, in the published config."""
    attention_dropout: bool = False


_NEOX = Family(norm=Norm.LAYER, mlp_copies=2, one_norm_input=True, fused_rotary=True)
_LLAMA = Family()
_GATED_ATTENTION = Family(norm=Norm.GEMMA, gated_attention=True)
_LATENT = Family(router_in_fp32=True)
_PLAIN = Family(norm=Norm.LAYER, mlp_copies=2)
FAMILIES: dict[str, Family] = {
    **dict.fromkeys(("llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe"), _LLAMA),
    **dict.fromkeys(("exaone4", "smollm3"), _LLAMA),
    "olmo2": Family(norm=Norm.GEMMA),
    "olmo3": Family(norm=Norm.GEMMA),
    "glm4": Family(post_norms=True),
    "glm4_moe": Family(router_in_fp32=True),
    "gpt_oss": Family(norm=Norm.GEMMA, scores_in_fp32=False, mlp_copies=7, writes_scores=True),
    "llama4_text": Family(every_expert=True),
    **dict.fromkeys(("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"), _GATED_ATTENTION),
    "olmo_hybrid": Family(norm=Norm.GEMMA),
    "nemotron_h": Family(mlp_copies=2),
    "lfm3": Family(post_norms=True),
    "recurrent_gemma": Family(norm=Norm.GEMMA),
    **dict.fromkeys(("kimi_linear", "longcat_flash", "kimi_k2"), _LATENT),
    **dict.fromkeys(("deepseek_v2", "deepseek_v3"), _LATENT),
    "phi3": Family(fused_rotary=True),
    "gemma": Family(norm=Norm.GEMMA),
    "gemma2": Family(norm=Norm.GEMMA, post_norms=True, softcap=True, writes_scores=True),
    "gemma3_text": Family(norm=Norm.GEMMA, post_norms=True),
    "gemma4_text": Family(norm=Norm.GEMMA, post_norms=True),
    "seed_oss": Family(dropout=True, attention_dropout=True),
    "stablelm": Family(norm=Norm.LAYER),
    "arcee": Family(mlp_copies=2),
    "starcoder2": _PLAIN,
    "gpt_neox": _NEOX,
    "gptj": Family(
        norm=Norm.LAYER, mlp_copies=5, one_norm_input=True, one_norm=True, writes_scores=True
    ),
    "phi": Family(norm=Norm.LAYER, mlp_copies=5, one_norm_input=True, one_norm=True),
    "falcon": Family(norm=Norm.LAYER, mlp_copies=2, one_norm_input=True, fused_rotary=True),
    "bloom": Family(norm=Norm.LAYER, mlp_copies=2, writes_scores=True, has_flash=False),
    "opt": Family(norm=Norm.LAYER, mlp_copies=1, dropout=True),
    "gpt2": Family(
        norm=Norm.LAYER, mlp_copies=5, scores_in_fp32=False, dropout=True, attention_dropout=True
    ),
    "gpt_neo": Family(norm=Norm.LAYER, mlp_copies=5, writes_scores=True),
    "gpt": Family(norm=Norm.LAYER, mlp_copies=2),
    "bert": Family(
        norm=Norm.LAYER, mlp_copies=2, scores_in_fp32=False, dropout=True, attention_dropout=True
    ),
    "t5": Family(mlp_copies=1, dropout=True, attention_dropout=True),
}


def family_of(shape: Architecture) -> Family:
    """Return the traits of an architecture's family."""
    known = FAMILIES.get(shape.family or "")
    return known or (_LLAMA if shape.gated_mlp else _PLAIN)


def latent_attention(shape: Architecture, width: int, *, flash: bool) -> float:
    """Return bytes per token and hidden unit, with ``width`` bytes an element.

    The rotary and the other part of queries and keys are concatenated: copies. Values are a view of
    the up projection, whose other half stays alive under flash attention; eager attention copies
    them. The output is copied for the output projection. Each low-rank projection keeps its norm's
    fp32 input, normalized value and output. Checked against transformers 5.23.
    """
    sizes = shape.extras
    rotary, plain = int(sizes["qk_rope_head_dim"]), int(sizes["qk_nope_head_dim"])
    value = int(sizes["v_head_dim"])
    per_head = 2 * (rotary + plain) + (plain + 3 * value if flash else 2 * value)
    ranks = [int(sizes[name]) for name in ("kv_lora_rank", "q_lora_rank") if sizes.get(name)]
    low = sum((4 + 2 * width) * rank + 4 for rank in ranks)
    return (width * shape.heads * per_head + low) / shape.hidden_size
