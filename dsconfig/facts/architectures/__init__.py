"""Model trees built from sizes, with the module names of Hugging Face.

Each family module has ``build(sizes: Architecture) -> Part`` and is imported on first use.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from dsconfig.facts.model import Architecture, ModelTree, with_counts

if TYPE_CHECKING:
    from dsconfig.facts.architectures.parts import Part

HOME_OF_FAMILY = {
    "llama": "llama",
    "mistral": "llama",
    "qwen2": "llama",
    "qwen3": "llama",
    "gemma2": "llama",
    "gemma3_text": "llama",
    "smollm3": "llama",
    "phi3": "llama",
    "mixtral": "llama",
    "qwen3_moe": "llama",
    **dict.fromkeys(
        ("gpt", "gpt2", "gpt_neo", "gptj", "gpt_neox", "opt", "bloom", "falcon", "phi"), "gpt"
    ),
    "deepseek_v2": "deepseek",
    "deepseek_v3": "deepseek",
    "kimi_k2": "deepseek",
    "gpt_oss": "gpt_oss",
    **dict.fromkeys(
        (
            "qwen3_next",
            "qwen3_5_text",
            "qwen3_5_moe_text",
            "olmo_hybrid",
            "nemotron_h",
            "bamba",
            "falcon_h1",
            "jamba",
            "granitemoehybrid",
            "lfm2",
            "lfm2_moe",
            "lfm3",
            "minimax",
            "recurrent_gemma",
            "mamba",
            "falcon_mamba",
            "mamba2",
            "kimi_linear",
            "longcat_flash",
        ),
        "hybrid",
    ),
}
"""Module that builds each ``model_type`` of Hugging Face (and ``gpt`` of our examples)."""


def normalises_heads(family: str | None) -> bool:
    """Return whether the family normalizes queries and keys, as Qwen 3 does."""
    return family in _NORMALISING or str(family).startswith("qwen3")


_NORMALISING = frozenset(
    {
        "gemma3_text",
        "gemma4_text",
        "olmo2",
        "olmo3",
        "olmoe",
        "flex_olmo",
        "exaone4",
        "exaone_moe",
        "minimax_m2",
        "apertus",
        "afmoe",
        "lfm2",
        "lfm2_moe",
        "lfm3",
        "olmo_hybrid",
    }
)


def model_of(name: str, sizes: Architecture) -> ModelTree | None:
    """Return the tree of a known family, else None. All counts are computed from its tensors."""
    home = HOME_OF_FAMILY.get(sizes.family or "")
    if home is None or (home == "hybrid" and not sizes.blocks):
        return None
    root = import_module(f"{__name__}.{home}").build(sizes).placed()
    bare = ModelTree(
        name=name,
        parameters=0,
        trainable=0,
        architecture=sizes,
        hidden_size=sizes.hidden_size,
    )
    return with_counts(bare, root)


def tower_of(kind: str, config: Mapping[str, Any], width: int) -> "tuple[str, Part] | None":
    """Return the tower of a model type, with its projector to ``width``, and the block of the
    config that describes it; None without one, or if its layout is unknown."""
    if config.keys().isdisjoint(("vision_config", "audio_config")):
        return None
    return import_module(f"{__name__}.towers").tower_of(kind, config, width)
