"""Models from a config.json, with family-specific names and nested parts."""

import json
import sys
from pathlib import Path

import pytest

from dsconfig.facts import FactError, gather, hf_config
from dsconfig.facts.model import ModelOutline
from narrowing import not_none

EXAMPLES = Path(__file__).parents[2] / "examples"
LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 172,
    "vocab_size": 100,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
LLAMA_PARAMETERS = 2 * 100 * 64 + 2 * (4 * 64 * 64 + 3 * 64 * 172 + 2 * 64) + 64


def test_config_parameters_are_counted_by_tensor():
    tree = hf_config.model(LLAMA)
    assert tree.parameters == LLAMA_PARAMETERS
    assert tree.trained_in == "bfloat16"
    assert not tree.assumed


def test_gpt2_and_generic_size_names_are_equivalent():
    theirs = {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 32}
    ours = {"architecture": "gpt", "hidden_size": 64, "layers": 2, "heads": 4, "max_positions": 32}
    untied = {"vocab_size": 100, "tie_word_embeddings": False}
    trees = [hf_config.model({**config, **untied}) for config in (theirs, ours)]
    assert trees[0].parameters == trees[1].parameters


def test_tree_from_file_equals_tree_of_live_module():
    dsengine = pytest.importorskip("dsengine")
    sys.path.insert(0, str(EXAMPLES))
    try:
        import gpt
    finally:
        sys.path.remove(str(EXAMPLES))
    model = not_none(gather(model=EXAMPLES / "gpt.json").model)
    live = dsengine.describe(gpt.from_json(EXAMPLES / "gpt.json"))
    assert model.parameters == live.parameters
    assert shapes(model) == shapes(live)


def shapes(tree):
    return {name: tensor.shape for name, tensor in tree.root.named_parameters()}


@pytest.mark.parametrize(
    "nest",
    [
        lambda inner: {"text_config": inner, "vision_config": {"hidden_size": 1024}},
        lambda inner: {"thinker_config": {"text_config": inner}},
        lambda inner: {"decoder": inner, "encoder": {"hidden_size": 32, "num_hidden_layers": 1}},
        lambda inner: {"encoder": inner},
    ],
)
def test_nested_language_model_is_found(nest):
    tree = hf_config.model(nest(LLAMA))
    assert tree.parameters == LLAMA_PARAMETERS
    assert any("language model" in message for message in tree.assumed)


def test_unknown_family_is_counted_like_a_related_one():
    tree = hf_config.model({**LLAMA, "model_type": "novel"})
    assert tree.root is None and tree.parameters == LLAMA_PARAMETERS
    assert "novel" in tree.assumed[0]


def test_config_without_sizes_suggests_params():
    with pytest.raises(FactError, match=r"params="):
        hf_config.model({"model_type": "llama"})


def test_non_integer_size_is_reported_with_its_key():
    with pytest.raises(FactError, match="hidden_size is '64'"):
        hf_config.model({**LLAMA, "hidden_size": "64"})


def test_model_from_file_is_named_by_its_path(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA))
    for model in (path, str(tmp_path)):  # the file and its folder
        assert not_none(gather(model=model).model).parameters == LLAMA_PARAMETERS


@pytest.mark.parametrize("name", ["num_hidden_layers", "num_experts"])
def test_excessive_model_size_is_refused(name):
    with pytest.raises(FactError, match=r"model: .*specify params="):
        hf_config.model({**LLAMA, name: 10**9})


def test_missing_vocabulary_is_refused_other_gaps_are_assumptions():
    without = {key: value for key, value in LLAMA.items() if key != "vocab_size"}
    with pytest.raises(FactError, match="no vocab_size"):
        hf_config.model(without)
    gaps = ("num_attention_heads", "intermediate_size")
    tree = hf_config.model({k: v for k, v in LLAMA.items() if k not in gaps})
    assert all(any(gap in message for message in tree.assumed) for gap in gaps)


LATENT = {"kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model_type": ["llama"]}, "model_type is"),
        ({"num_experts": "8"}, "num_experts is '8'"),
        ({"num_experts": 8, "moe_intermediate_size": -1}, "moe_intermediate_size is -1"),
        ({"num_attention_heads": 128}, "model.layers.0.self_attn.q_proj.weight of shape"),
        ({"model_type": "deepseek_v3"}, "kv_lora_rank, qk_rope_head_dim"),
        ({**LATENT, "v_head_dim": "8"}, "v_head_dim is '8'"),
        ({**LATENT, "q_lora_rank": -8}, "q_lora_rank is -8"),
        ({"model_type": "gpt_oss"}, "mlp.router.weight of shape (0, 64)"),
        ({"model_type": "qwen3_next", "linear_num_value_heads": None}, "a size is missing"),
        ({"model_type": "mamba", "state_size": 16, "expand": 1.5}, "expand is 1.5"),
        ({"model_type": "lfm2", "block_ffn_dim_multiplier": "2"}, "block_ffn_dim_multiplier"),
        ({"model_type": "recurrent_gemma", "lru_width": 2}, "of shape"),
    ],
)
def test_invalid_sizes_are_refused_by_key(settings: dict[str, object], message: str):
    with pytest.raises(ValueError, match=r"^model: ") as refused:
        hf_config.model({**LLAMA, **settings})
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("num_attention_heads", [3, 6, 12, 24]),
        ("num_hidden_layers", {"vision": 5, "language": 9}),
        ("num_experts", 100_001),  # times 2 layers
    ],
)
def test_sizes_that_are_not_one_number_give_an_outline(key: str, value: object):
    config = {**LLAMA, "model_type": "novel", key: value}
    outline = hf_config.model_or_outline(config)
    assert isinstance(outline, ModelOutline)
    assert outline.hidden_size == LLAMA["hidden_size"] and "specify params=" in outline.why


@pytest.mark.parametrize("value", [[3, "6"], [3, 0], [], {}, {"vision": "5"}, {"vision": True}])
@pytest.mark.parametrize("key", ["num_attention_heads", "num_hidden_layers"])
def test_invalid_lists_of_sizes_are_refused_by_key(key: str, value: object):
    with pytest.raises(FactError, match=f"{key} is "):
        hf_config.model_or_outline({**LLAMA, "model_type": "novel", key: value})


def test_unused_head_dim_of_zero_is_ignored():
    assert hf_config.model({**LLAMA, "head_dim": 0}).parameters == LLAMA_PARAMETERS


def test_omitted_sizes_are_accepted():
    mamba = {**LLAMA, "model_type": "mamba", "state_size": 16}
    written = {"time_step_rank": "auto", "expand": 2.0, "mamba_d_ssm": None, "num_experts": 0}
    assert hf_config.model({**mamba, **written}).root == hf_config.model(mamba).root
