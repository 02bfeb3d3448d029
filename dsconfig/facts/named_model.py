"""Models of the catalogue."""

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from dsconfig.facts import architectures, catalogue, mixers
from dsconfig.facts.model import Architecture, ModelTree
from dsconfig.facts.naming import named

FAMILY_OF_CLASS = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "MixtralForCausalLM": "mixtral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Qwen3MoeForCausalLM": "qwen3_moe",
    "GPT2LMHeadModel": "gpt2",
    "GPTNeoForCausalLM": "gpt_neo",
    "GPTJForCausalLM": "gptj",
    "GPTNeoXForCausalLM": "gpt_neox",
    "OPTForCausalLM": "opt",
    "BloomForCausalLM": "bloom",
    "FalconForCausalLM": "falcon",
    "PhiForCausalLM": "phi",
    "Phi3ForCausalLM": "phi3",
    "Gemma2ForCausalLM": "gemma2",
    "Gemma3ForCausalLM": "gemma3_text",
    "SmolLM3ForCausalLM": "smollm3",
    "GptOssForCausalLM": "gpt_oss",
    "Glm4MoeForCausalLM": "glm4_moe",
    "Llama4ForCausalLM": "llama4_text",
    "MiniMaxM2ForCausalLM": "minimax_m2",
    "Qwen3NextForCausalLM": "qwen3_next",
    "Qwen3_5ForCausalLM": "qwen3_5_text",
    "Qwen3_5MoeForCausalLM": "qwen3_5_moe_text",
    "DeepseekV3ForCausalLM": "deepseek_v3",
    "KimiLinearForCausalLM": "kimi_linear",
    "T5ForConditionalGeneration": "t5",
    "BertForMaskedLM": "bert",
}
_EXTRAS = (
    "decoder_layers",
    "v_head_dim",
    "kv_lora_rank",
    "q_lora_rank",
    "qk_rope_head_dim",
    "qk_nope_head_dim",
)
_TRAINED_IN = {
    **dict.fromkeys(("gpt2", "gpt_neo", "gptj", "bert"), "float32"),
    **dict.fromkeys(("gpt_neox", "opt", "phi"), "float16"),
}
"""Families in the catalogue that were not trained in bf16, and the dtype of their checkpoints."""
_STORED_IN = {"t5": "float32"}
"""Families whose checkpoints have another dtype than they were trained in."""
_VARIANTS = frozenset(("instruct", "chat", "it", "base", "pt", "hf", "thinking"))
"""Words of names on the hub that do not change the sizes of a model."""
_DATE = re.compile(r"(?:0[1-9]|1[0-2])\d\d|2[3-9](?:0[1-9]|1[0-2])")
_SIZE = re.compile(r"(?:\d+x)?\d+(?:\.\d+)?[bm]")


@lru_cache(maxsize=64)
def model(name: str) -> ModelTree:
    """Return the model with this name or Hugging Face id, ignoring case and separators, the owner
    and words such as ``Instruct``.

    Raises FactError with the closest names if there is none.
    """
    for form in (catalogue.squeezed, _short, _base):
        for entry in catalogue.models():
            known = (entry["name"], entry["hf_id"], *entry.get("aliases", ()))
            if form(name) in map(form, known):
                return _tree(entry)
    known = (entry["name"] for entry in catalogue.models())
    remedy = f"Specify the path of its config.json, or {named('params')}"
    raise catalogue.unknown("model", name, known, remedy)


def _short(name: str) -> str:
    """Return a name without its owner, case and separators: mirrors keep it."""
    return catalogue.squeezed(name.rpartition("/")[2])


@lru_cache(maxsize=1024)
def _base(name: str) -> str:
    """Return the name of the base model: without owner, words of variants, and dates next to a
    size.

    Without a size, a date may stand for another model (Magistral-Small-2509 has a vision tower).
    """
    words = [word for word in re.split(r"[-_ ]+", name.rpartition("/")[2].lower()) if word]
    dated = any(map(_SIZE.fullmatch, words))
    kept = [
        word for word in words if word not in _VARIANTS and not (dated and _DATE.fullmatch(word))
    ]
    return catalogue.squeezed("".join(kept[kept[:1] == ["meta"] :]))


def _tree(entry: Mapping[str, Any]) -> ModelTree:
    sizes = architecture(entry)
    tree = architectures.model_of(entry["name"], sizes) or ModelTree(
        name=entry["name"],
        parameters=entry["params"],
        trainable=entry["params"],
        architecture=sizes,
        largest_tensor=entry["largest_tensor_params"],
        largest_module=entry["largest_module_params"],
        largest_block=entry["largest_block_params"],
        hidden_size=entry["hidden_size"],
    )
    family = str(sizes.family)
    trained_in = _TRAINED_IN.get(family, "bfloat16")
    return replace(
        tree,
        uncounted=entry.get("uncounted", ""),
        trained_in=trained_in,
        stored_in=_STORED_IN.get(family, trained_in),
        config=MappingProxyType({"hidden_size": entry["hidden_size"]}),
    )


def architecture(entry: Mapping[str, Any]) -> Architecture:
    """Return the sizes of a catalogue entry."""
    family = FAMILY_OF_CLASS[entry["arch"]]
    dense = range(entry.get("first_dense_blocks", 0))
    config = {**entry.get("blocks", {}), "model_type": family}
    return Architecture(
        hidden_size=entry["hidden_size"],
        layers=entry["layers"],
        heads=entry["heads"],
        kv_heads=entry["kv_heads"],
        head_dim=entry["head_dim"],
        intermediate_size=entry["intermediate_size"],
        vocab_size=entry["vocab_size"],
        max_positions=entry["max_positions"],
        gated_mlp=entry["glu"],
        tied_embeddings=entry["tied_embeddings"],
        query_key_norm=architectures.normalises_heads(family),
        family=family,
        experts=entry.get("experts"),
        experts_per_token=entry.get("experts_per_token"),
        expert_size=entry.get("moe_intermediate_size"),
        shared_width=entry.get("shared_expert_size", 0),
        dense_blocks=tuple(dense),
        blocks=mixers.blocks_of(
            config,
            entry["layers"],
            entry["hidden_size"],
            lambda place: "experts" in entry and place not in dense,
        ),
        extras=MappingProxyType({key: entry[key] for key in _EXTRAS if key in entry}),
    )
