"""Vision towers count, and equal those of transformers; what is not counted is named."""

import json
from pathlib import Path
from typing import Any

import pytest

from dsconfig.facts import hf_config
from narrowing import not_none

ORACLE = Path(__file__).parents[1] / "oracle" / "towers.json"
"""Configs of transformers 5.23 with the parameters of the real models, built on the meta device:
``python tests/facts/test_towers.py`` writes them."""
CASES: list[dict[str, Any]] = json.loads(ORACLE.read_text("utf-8"))
_TEXT = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 1000,
}
_QWEN = {"depth": 4, "hidden_size": 64, "num_heads": 4, "intermediate_size": 172}
_CLIP = {
    "hidden_size": 64,
    "intermediate_size": 172,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "image_size": 56,
    "patch_size": 14,
}
_INTERN = {**_CLIP, "image_size": [56, 56], "patch_size": [14, 14]}
_AUDIO = {
    "d_model": 64,
    "encoder_ffn_dim": 172,
    "encoder_layers": 3,
    "encoder_attention_heads": 4,
    "num_mel_bins": 16,
    "max_source_positions": 30,
}
_SIGLIP = {**_CLIP, "model_type": "siglip_vision_model"}
RECORDED: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    (
        "qwen2_vl",
        {"depth": 4, "embed_dim": 64, "num_heads": 4, "mlp_ratio": 4, "hidden_size": 128},
        {},
    ),
    ("qwen2_5_vl", {**_QWEN, "out_hidden_size": 128}, {}),
    ("qwen3_vl", {**_QWEN, "out_hidden_size": 128, "deepstack_visual_indexes": [0, 2]}, {}),
    ("qwen3_vl_moe", {**_QWEN, "out_hidden_size": 128}, {}),
    ("qwen3_5", {**_QWEN, "out_hidden_size": 128}, {}),
    ("llava", {**_CLIP, "model_type": "clip_vision_model"}, {"model_type": "llama"}),
    ("llava_next", {**_CLIP, "model_type": "clip_vision_model"}, {"model_type": "llama"}),
    ("llava_next", _SIGLIP, {"model_type": "llama"}),
    ("llava_onevision", {**_SIGLIP, "vision_use_head": False}, {"model_type": "qwen2"}),
    ("idefics3", _CLIP, {"model_type": "llama"}),
    ("smolvlm", _CLIP, {"model_type": "llama"}),
    ("internvl", _INTERN, {"model_type": "qwen2"}),
    (
        "internvl",
        {**_INTERN, "norm_type": "rms_norm", "use_qk_norm": True, "attention_bias": True},
        {"model_type": "qwen2"},
    ),
    ("qwen2_audio", _AUDIO, {"model_type": "qwen2"}),
    ("gemma3", {**_SIGLIP, "vision_use_head": False}, {"model_type": "gemma3_text"}),
    ("gemma3", _SIGLIP, {"model_type": "gemma3_text"}),
    ("mistral3", {**_CLIP, "model_type": "pixtral", "head_dim": 16}, {"model_type": "mistral"}),
    (
        "paligemma",
        {**_SIGLIP, "vision_use_head": False, "projection_dim": 128},
        {"model_type": "gemma"},
    ),
]


@pytest.mark.parametrize("case", CASES, ids=[case["config"]["model_type"] for case in CASES])
def test_parameters_equal_those_of_the_real_model(case: dict[str, Any]) -> None:
    tree = hf_config.model(case["config"])
    assert tree.parameters == tree.trainable == case["parameters"]
    assert not [note for note in tree.assumed if "towers" in note]
    if tree.root is not None:
        ours = {name: tensor.shape for name, tensor in tree.root.named_parameters()}
        theirs = {name: tuple(shape) for name, shape in case["tower"].items()}
        assert {name: ours.get(name) for name in theirs} == theirs


QWEN_2_5_VL: dict[str, Any] = {
    "model_type": "qwen2_5_vl",
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "vocab_size": 152064,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "vision_config": {
        "depth": 32,
        "hidden_size": 1280,
        "intermediate_size": 3420,
        "num_heads": 16,
        "out_hidden_size": 3584,
        "patch_size": 14,
        "spatial_merge_size": 2,
    },
}
"""Text sizes at the top level, as in published config.json files before transformers 4.52."""


def test_published_size_includes_the_tower() -> None:
    assert hf_config.model(QWEN_2_5_VL).parameters == 8_292_166_656
    text = {key: value for key, value in QWEN_2_5_VL.items() if key != "vision_config"}
    assert hf_config.model(text).parameters == 7_615_616_512


@pytest.mark.parametrize("key", ["vision_config", "audio_config"])
def test_tower_that_is_not_counted_is_named(key: str) -> None:
    config = {**QWEN_2_5_VL, "model_type": "novel", key: {"hidden_size": 64}}
    assert any(note.endswith(f"other towers: {key}") or key in note
               for note in hf_config.model(config).assumed)  # fmt: skip
    # A tower of another layout, and one with an impossible size.
    for changed in ({"model_type": "dinov2"}, {"hidden_size": -1}):
        vision = {**QWEN_2_5_VL["vision_config"], **changed}
        config = {**QWEN_2_5_VL, "model_type": "llava", "vision_config": vision}
        assert any("vision_config" in note for note in hf_config.model(config).assumed)


def _recorded() -> list[dict[str, Any]]:
    import torch
    import transformers
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES as NAMES,
    )

    classes = {**NAMES, "qwen2_audio": "Qwen2AudioForConditionalGeneration"}

    found: list[dict[str, Any]] = []
    for kind, vision, more in RECORDED:
        block = "audio_config" if kind == "qwen2_audio" else "vision_config"
        config = transformers.AutoConfig.for_model(
            kind, **{block: vision, "text_config": {**_TEXT, **more}}
        )
        named = classes[kind]
        class_ = getattr(transformers, named if isinstance(named, str) else named[0])
        with torch.device("meta"):
            model = class_._from_config(config)
        model.tie_weights()
        parameters = dict(model.named_parameters(remove_duplicate=False))
        words = ("visual", "vision", "projector", "connector", "newline", "audio_tower")
        found.append(
            {
                "config": json.loads(config.to_json_string(use_diff=False)),
                "parameters": sum(each.numel() for each in model.parameters()),
                "tower": {
                    name: list(each.shape)
                    for name, each in parameters.items()
                    if any(word in name for word in words)
                },
            }
        )
    return found


@pytest.mark.live
@pytest.mark.filterwarnings("ignore")
def test_recorded_models_are_those_of_transformers() -> None:
    pytest.importorskip("transformers")
    live = [(each["parameters"], each["tower"]) for each in _recorded()]
    assert live == [(not_none(each["parameters"]), each["tower"]) for each in CASES]


if __name__ == "__main__":
    ORACLE.write_text(json.dumps(_recorded(), indent=1) + "\n", "utf-8")
