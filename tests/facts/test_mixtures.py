"""Mixture-of-experts sizes from a config.json."""

from typing import Any

import pytest

from dsconfig.facts import hf_config
from dsconfig.facts.mixtures import mixture_of

BASE: dict[str, Any] = {"num_experts": 8, "num_experts_per_tok": 2, "intermediate_size": 100}


def dense(**more: Any) -> tuple[int, ...]:
    return mixture_of({**BASE, **more}, 6)["dense_blocks"]


@pytest.mark.parametrize(
    ("settings", "places"),
    [
        ({}, ()),
        ({"first_k_dense_replace": 2}, (0, 1)),
        ({"num_dense_layers": 1}, (0,)),
        ({"mlp_only_layers": [0, 5]}, (0, 5)),
        ({"decoder_sparse_step": 2}, (0, 2, 4)),
        ({"interleave_moe_layer_step": 3}, (0, 1, 3, 4)),
        ({"moe_layers": [1, 2]}, (0, 3, 4, 5)),
        ({"expert_layer_period": 2, "expert_layer_offset": 1}, (0, 2, 4)),
        ({"moe_layer_start_index": 1, "moe_layer_end_index": 4}, (0, 5)),
        ({"mlp_layer_types": ["dense"] * 3 + ["sparse"] * 3}, (0, 1, 2)),
    ],
)
def test_blocks_with_experts_by_family(settings: dict[str, Any], places: tuple[int, ...]) -> None:
    assert dense(**settings) == places


def test_shared_experts_by_number_or_width() -> None:
    by_number = mixture_of({**BASE, "n_shared_experts": 2, "moe_intermediate_size": 30}, 6)
    by_width = mixture_of({**BASE, "shared_expert_intermediate_size": 60}, 6)
    untold = mixture_of({**BASE, "model_type": "llama4_text"}, 6)
    assert [each["shared_width"] for each in (by_number, by_width, untold)] == [60, 60, 100]


def test_size_may_be_a_list_of_equal_values() -> None:
    """As in Gemma 3n and Hunyuan; sizes that differ between blocks are refused."""
    mixture = mixture_of({**BASE, "num_experts": [8] * 6, "moe_topk": [2] * 6}, 6)
    assert mixture == mixture_of(BASE, 6)
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 100}
    config = {**sizes, "model_type": "llama", "intermediate_size": [96, 96]}
    one = hf_config.model({**config, "intermediate_size": 96})
    assert hf_config.model(config).architecture == one.architecture
    with pytest.raises(ValueError, match="intermediate_size"):
        hf_config.model({**config, "intermediate_size": [96, 64]})


def test_one_expert_is_not_a_mixture() -> None:
    assert mixture_of({"num_experts": 1}, 6) == {}
    assert mixture_of({"intermediate_size": 100}, 6) == {}


def test_experts_of_unknown_family_are_counted() -> None:
    """The estimate states that the layout is unknown."""
    sizes = {"hidden_size": 64, "num_hidden_layers": 6, "num_attention_heads": 4, "vocab_size": 100}
    config = {**BASE, **sizes, "model_type": "another_moe", "hidden_act": "silu"}
    tree = hf_config.model({**config, "moe_intermediate_size": 32, "num_experts": 16})
    experts = 6 * 16 * 3 * 64 * 32
    assert experts < tree.parameters < experts + 6 * (4 * 64 * 64 + 16 * 64 + 200) + 2 * 6400 + 100
    assert "is unknown" in tree.assumed[0]


@pytest.mark.live
@pytest.mark.parametrize(
    "family",
    [
        "gpt_oss",
        "glm4_moe",
        "glm4_moe_lite",
        "qwen2_moe",
        "qwen3_next",
        "olmoe",
        "granitemoe",
        "llama4_text",
        "deepseek_v2",
        "deepseek_v3",
        "ernie4_5_moe",
        "minimax_m2",
        "mixtral",
        "gemma",
        "gemma4_text",
        "starcoder2",
        "apertus",
    ],
)
def test_parameters_are_within_three_percent_of_the_live_model(family: str) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = transformers.AutoConfig.for_model(family)
    with torch.device("meta"):
        live = transformers.AutoModelForCausalLM.from_config(config)
    expected = sum(each.numel() for each in live.parameters())
    assert hf_config.model(config.to_dict()).parameters == pytest.approx(expected, rel=0.03)
