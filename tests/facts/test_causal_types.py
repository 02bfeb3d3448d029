"""Parameters from a config.json, compared with the live model by name and shape.

Without sizes that take memory: the models are built on the meta device.
"""

from typing import Any

import pytest

from dsconfig.facts import hf_config
from dsconfig.facts.mixers import ATTENTION, Mixing
from facts.causal_types import causal_types, counted, live_shapes

SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 128,
    "intermediate_size": 96,
    "num_hidden_layers": 6,
    "pad_token_id": 0,
}
BARE = {name: SIZES[name] for name in ("hidden_size", "vocab_size", "num_hidden_layers")}
DELTA = {
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 24,
    "linear_conv_kernel_dim": 3,
}
MAMBA_2 = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
LATENT = {"kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 16}
BY_TURNS = ["linear_attention", "linear_attention", "full_attention"] * 2
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "Qwen3-Next": (
        "qwen3_next",
        {
            **SIZES,
            **DELTA,
            **EXPERTS,
            "shared_expert_intermediate_size": 40,
            "full_attention_interval": 3,
            "mlp_only_layers": [1],
        },
    ),
    "Qwen3.5": ("qwen3_5_text", {**SIZES, **DELTA, "tie_word_embeddings": True}),
    "Qwen3.5 MoE": (
        "qwen3_5_moe_text",
        {**SIZES, **DELTA, **EXPERTS, "shared_expert_intermediate_size": 40},
    ),
    "Olmo Hybrid": ("olmo_hybrid", {**SIZES, **DELTA, "layer_types": BY_TURNS}),
    "Kimi Linear": (
        "kimi_linear",
        {
            **SIZES,
            **LATENT,
            "linear_attn_config": {
                "full_attn_layers": [3, 6],
                "kda_layers": [1, 2, 4, 5],
                "num_heads": 4,
                "head_dim": 16,
                "short_conv_kernel_size": 4,
            },
            "num_experts": 4,
            "num_experts_per_token": 2,
            "num_shared_experts": 1,
            "moe_intermediate_size": 32,
            "first_k_dense_replace": 1,
        },
    ),
    "Nemotron-H by its pattern": (
        "nemotron_h",
        {
            **SIZES,
            "hybrid_override_pattern": "M-M*-E",
            "mamba_num_heads": 8,
            "mamba_head_dim": 16,
            "ssm_state_size": 16,
            "n_groups": 2,
            "head_dim": 16,
            "moe_intermediate_size": 32,
            "moe_shared_expert_intermediate_size": 40,
            "moe_latent_size": 24,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
        },
    ),
    "Bamba": ("bamba", {**SIZES, **MAMBA_2, "attn_layer_indices": [2, 5]}),
    "Granite hybrid": (
        "granitemoehybrid",
        {
            **SIZES,
            **MAMBA_2,
            "layer_types": ["mamba", "attention"] * 3,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "shared_intermediate_size": 48,
        },
    ),
    "Granite hybrid without experts": (
        "granitemoehybrid",
        {
            **SIZES,
            **MAMBA_2,
            "layer_types": ["mamba", "attention"] * 3,
            "num_local_experts": 0,
            "num_experts_per_tok": 0,
            "shared_intermediate_size": 48,
        },
    ),
    "Falcon-H1": (
        "falcon_h1",
        {**SIZES, **MAMBA_2, "mamba_d_ssm": 128, "mamba_rms_norm": True},
    ),
    "Jamba": (
        "jamba",
        {
            **SIZES,
            "num_experts": 4,
            "attn_layer_period": 3,
            "attn_layer_offset": 1,
            "expert_layer_period": 2,
            "expert_layer_offset": 1,
            "mamba_d_state": 16,
            "mamba_dt_rank": "auto",
        },
    ),
    "LFM2": ("lfm2", {**SIZES, "full_attn_idxs": [1, 4], "conv_L_cache": 3}),
    "LFM2 of its own width": (
        "lfm2",
        {
            **SIZES,
            "layer_types": ["conv", "full_attention"] * 3,
            "block_auto_adjust_ff_dim": False,
            "conv_L_cache": 4,
            "conv_bias": True,
        },
    ),
    "LFM2 MoE": (
        "lfm2_moe",
        {
            **SIZES,
            **EXPERTS,
            "layer_types": ["conv", "full_attention"] * 3,
            "num_dense_layers": 2,
            "conv_L_cache": 3,
        },
    ),
    "MiniMax": ("minimax", {**SIZES, "num_local_experts": 4, "layer_types": BY_TURNS}),
    "RecurrentGemma": ("recurrent_gemma", {**SIZES, "lru_width": 80}),
    "Mamba": ("mamba", {**BARE, "state_size": 8, "use_bias": True}),
    "Falcon Mamba": ("falcon_mamba", {**BARE, "state_size": 8, "tie_word_embeddings": False}),
    "Mamba-2": (
        "mamba2",
        {**BARE, "state_size": 16, "num_heads": 8, "head_dim": 16, "n_groups": 2},
    ),
    "LongCat": (
        "longcat_flash",
        {
            **LATENT,
            "hidden_size": 64,
            "vocab_size": 128,
            "num_attention_heads": 4,
            "num_layers": 2,
            "ffn_hidden_size": 96,
            "q_lora_rank": 16,
            "n_routed_experts": 4,
            "zero_expert_num": 2,
            "expert_ffn_hidden_size": 32,
            "moe_topk": 2,
        },
    ),
}


def kinds_of(config: dict[str, Any]) -> list[tuple[str, ...]]:
    shape = hf_config.architecture_of(config)
    assert shape is not None
    return [tuple(str(each.kind) for each in block.mixers) for block in shape.blocks]


@pytest.mark.live
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", MODELS)
def test_hybrid_tensors_match_the_live_model(name: str) -> None:
    """For published config files and those that transformers saves."""
    family, given = MODELS[name]
    config, shapes = live_shapes(family, given)
    for file in ({**given, "model_type": family}, config.to_dict()):
        root = hf_config.model(file).root
        assert root is not None
        ours = {
            name: each.shape for name, each in root.named_parameters() if each.storage in ("", name)
        }
        assert ours == shapes


@pytest.mark.parametrize(
    ("name", "attention"),
    [
        ("Qwen3-Next", (2, 5)),
        ("Olmo Hybrid", (2, 5)),
        ("Kimi Linear", (2, 5)),
        ("Nemotron-H by its pattern", (3,)),
        ("Bamba", (2, 5)),
        ("Granite hybrid", (1, 3, 5)),
        ("Falcon-H1", range(6)),
        ("Jamba", (1, 4)),
        ("LFM2", (1, 4)),
        ("MiniMax", (2, 5)),
        ("RecurrentGemma", (2, 5)),
        ("Mamba", ()),
    ],
)
def test_attention_blocks_follow_the_config(name: str, attention: Any) -> None:
    family, given = MODELS[name]
    shape = hf_config.architecture_of({**given, "model_type": family})
    assert shape is not None
    assert [at for at, block in enumerate(shape.blocks) if block.attentions] == list(attention)


def test_block_pattern_determines_kinds_and_depth() -> None:
    family, given = MODELS["Nemotron-H by its pattern"]
    config = {**given, "model_type": family}
    del config["num_hidden_layers"]
    shape = hf_config.architecture_of(config)
    assert shape is not None and shape.layers == 6
    assert [(block.dense, block.has_experts) for block in shape.blocks] == [
        (0, False),
        (1, False),
        (0, False),
        (0, False),
        (1, False),
        (0, True),
    ]
    assert kinds_of(config)[0] == (Mixing.MAMBA_2,) and kinds_of(config)[3] == (ATTENTION.kind,)


def test_attention_only_model_has_one_block_kind() -> None:
    shape = hf_config.architecture_of({**SIZES, "model_type": "llama"})
    assert shape is not None and not shape.blocks
    assert list(shape.kinds.values()) == [6] and shape.attentions == 6


def test_block_kind_of_unknown_size_is_an_assumption() -> None:
    config = {**SIZES, "model_type": "another", "layer_types": ["linear_attention"] * 6}
    tree = hf_config.model(config)
    assert any("linear_attention" in message for message in tree.assumed)
    assert any("may be far off" in message for message in tree.assumed)


def test_class_defaults_apply_to_omitted_settings() -> None:
    """SmolLM3 ties embedding and head, but its published configs omit the setting."""
    tied = hf_config.model({**SIZES, "model_type": "smollm3"})
    apart = hf_config.model({**SIZES, "model_type": "smollm3", "tie_word_embeddings": False})
    assert apart.parameters - tied.parameters == 128 * 64


def test_falcon_key_value_heads() -> None:
    def heads(**more: Any) -> int | None:
        shape = hf_config.architecture_of(
            {**SIZES, "model_type": "falcon", "num_kv_heads": 4, **more}
        )
        assert shape is not None
        return shape.kv_heads

    assert (heads(), heads(multi_query=False)) == (1, 4)
    assert heads(new_decoder_architecture=True, num_kv_heads=2) == 2


@pytest.mark.live
@pytest.mark.deep
@pytest.mark.filterwarnings("ignore")
def test_parameter_counts_are_exact_or_flagged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Within 3% of the live model with its default config, or flagged."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    found = {name: counted(name) for name in causal_types()}
    assert [name for name, each in found.items() if each and not each.is_right] == [
        name for name, each in found.items() if each and each.is_flagged and not each.is_right
    ]
