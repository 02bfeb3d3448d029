"""Model trees built from sizes: one file per family, names as in Hugging Face's modules.

Each family module has ``build(sizes: Architecture) -> Part``. Nothing is imported before a
model of that family is asked for.
"""

from importlib import import_module

from dsconfig.facts.model import Architecture, ModelTree, ModuleFact, counted

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
    "gpt2": "gpt2",
    "gpt": "gpt",
    "gpt_neo": "eleuther",
    "gptj": "eleuther",
    "gpt_neox": "eleuther",
    "opt": "opt",
    "bloom": "bloom",
    "falcon": "bloom",
    "phi": "bloom",
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
"""Which module builds each ``model_type`` of Hugging Face (and our examples' ``gpt``)."""


def normalises_heads(family: str | None) -> bool:
    """Whether queries and keys go through a norm, of each head or of all: Qwen 3 and its kin."""
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


def tree(sizes: Architecture) -> ModuleFact | None:
    """The whole module tree, or None when the family is not known here."""
    home = HOME_OF_FAMILY.get(sizes.family or "")
    if home is None or (home == "hybrid" and not sizes.blocks):
        return None
    return import_module(f"{__name__}.{home}").build(sizes).placed()


def model_of(
    name: str, sizes: Architecture, *, trained_in: str | None = None, assumed: tuple[str, ...] = ()
) -> ModelTree | None:
    """The tree of a known family, None for the others. Everything is counted from its tensors."""
    root = tree(sizes)
    if root is None:
        return None
    bare = ModelTree(
        name=name,
        parameters=0,
        trainable=0,
        root=root,
        architecture=sizes,
        hidden_size=sizes.hidden_size,
        trained_in=trained_in,
        assumed=assumed,
    )
    return counted(bare, root)
