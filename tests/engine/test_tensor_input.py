"""Models and configs whose layers cannot be split: one error on every rank, before training."""

import re
from typing import Any

import pytest
import torch
from torch import nn

from dsengine.parallel.tensor_plan import SUMMED, Layer, layers_of_plan, layers_of_rules
from training import tensor_jobs
from training.ranks import Ranks, SharedRanks

JOBS = "training.tensor_input_jobs"
ROW = {"patterns": [r".*\.out\.weight"], "partition_type": "row"}


def rules(*specs: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"partition_config": {"layer_specs": list(specs), **more}}


@pytest.mark.engine
@pytest.mark.parametrize(
    ("kind", "block", "words"),
    [
        ("own", {}, "Own has no tp_plan: write the rules .*layer_specs"),
        ("rules", rules({"patterns": ["nothing"]}), "layer_specs splits no layer of Ruled"),
        ("rules", rules(ROW, strict_mode=True), "no rule matches blocks.0.q.weight"),
        (
            "rules",
            rules({**ROW, "shape": [-1, 5]}),
            r"shape \[-1, 5\] of the rule for blocks.0.out does not fit its weight \[32, 32\]",
        ),
        (
            "rules",
            rules({**ROW, "shape": [-1, [31, 1]]}),
            "does not divide 31 rows or columns in blocks.0.out: use 1",
        ),
        (
            "rules",
            rules({**ROW, "partition_dim": 0}),
            "partition_dim 0, but row splits dimension 1",
        ),
        (
            "rules",
            {"vocab_parallel_lm_head": True},
            "requires one linear layer named lm_head or embed_out, but Ruled has 0: remove the key",
        ),
        (
            "rules",
            {"preset_model": "bloom", **rules(use_default_specs=True)},
            "layer_specs splits no layer of Ruled",
        ),
        ("rules", {"tp": {"tp_size": 4}}, "tp_size 4 contradicts the degree 2"),
    ],
)
def test_what_cannot_be_split_is_refused(
    ranks: Ranks, kind: str, block: dict[str, Any], words: str
) -> None:
    messages = ranks.run(f"{JOBS}:refused", kind=kind, block=block)
    assert len(set(messages)) == 1
    assert re.search(words, messages[0]), messages[0]


@pytest.mark.engine
@pytest.mark.parametrize(
    ("kind", "size", "more", "words"),
    [
        ("rules", 3, {}, "autotp_size 3 does not divide 4 ranks: use 2"),
        (
            "rules",
            4,
            {"sequence_parallel_size": 2},
            "autotp_size 4 does not divide 4 ranks, .* takes 2: use 2",
        ),
        ("odd width", 4, {}, "does not divide out_features 42 of blocks.0.q: use 2"),
    ],
)
def test_degrees_name_the_nearest_valid_one(
    ranks_of: SharedRanks, kind: str, size: int, more: dict[str, Any], words: str
) -> None:
    block = {"autotp_size": size}
    messages = ranks_of(4).run(f"{JOBS}:refused", kind=kind, block=block, more=more)
    assert len(set(messages)) == 1
    assert re.search(words, messages[0], re.DOTALL), messages[0]


@pytest.mark.engine
@pytest.mark.live
@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("one key head", "nearest possible: 1.: 1 key/value heads"),
        ("gemma 3n", "does not split gemma3n_text"),
    ],
)
def test_models_of_transformers_that_are_refused(ranks: Ranks, kind: str, words: str) -> None:
    messages = ranks.run(f"{JOBS}:refused", kind=kind, block={})
    assert len(set(messages)) == 1
    assert re.search(words, messages[0], re.DOTALL), messages[0]


@pytest.mark.engine
@pytest.mark.live
def test_mpu_is_refused(ranks_of: SharedRanks) -> None:
    messages = ranks_of(4).run(f"{JOBS}:refused", kind="causal", block={}, sequence=2)
    assert len(set(messages)) == 1
    assert "sequence_parallel_size" in messages[0]


@pytest.mark.engine
def test_ranks_of_a_group_get_the_same_samples(ranks_of: SharedRanks) -> None:
    found = ranks_of(4).run(f"{JOBS}:samples_of_loader")
    assert found[0] == found[1] and found[2] == found[3]
    assert found[0][0] == [[0, 2], [4, 6]] and found[2][0] == [[1, 3], [5, 7]]
    assert found[0][1] == (4, 2, 1)


@pytest.mark.engine
def test_degree_of_tp_model_init(ranks: Ranks) -> None:
    job = f"{JOBS}:of_tp_model_init"
    assert ranks.run(job, size=2, block={"autotp_size": 0}) == ["2", "2"]
    assert ranks.run(job, size=2, block={"autotp_size": 2}) == ["2", "2"]
    for message in ranks.run(job, size=2, block={"autotp_size": 4}):
        assert "autotp_size 4 contradicts tp_model_init, whose tp_size is 2" in message


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ({"shape": [2, -1]}, (4, 4)),
        ({"shape": [2, 4]}, (4, 4)),
        ({"shape": [[4, 2, 2], -1], "partition_dim": 0}, (4, 2, 2)),
        ({"shape": [4, -1, 4], "partition_dim": 1}, (2, 2, 2, 2)),
        ({"shape": [2, [1, 3], 4], "partition_dim": 1}, (1, 3, 1, 3)),
        ({"shape": [-1, 4]}, ()),
        ({"shape": [-1, 2], "partition_type": "row"}, (2, 2)),
        ({"shape": [-1, [3, 1]], "partition_type": "row"}, (3, 1)),
    ],
)
def test_matrices_of_a_shape(rule: dict[str, Any], expected: tuple[int, ...]) -> None:
    """The weight has 8 outputs and 4 inputs."""
    block = rules({"patterns": ["fused"], **rule})
    (layer,) = layers_of_rules(block, {"fused": (8, 4)}, [], "")
    assert layer.packed == expected
    assert layer.style.startswith("packed") is bool(expected)


@pytest.mark.parametrize("shape", [[3, -1], [[4, 2], -1], [2, 5], [0, -1]])
def test_shapes_that_do_not_fit(shape: list[Any]) -> None:
    block = rules({"patterns": ["fused"], "shape": shape})
    with pytest.raises(ValueError, match="does not fit its weight"):
        layers_of_rules(block, {"fused": (8, 4)}, [], "")


def test_plan_names_layers_by_number() -> None:
    plan = {"layers.*.q": "colwise", "head": "colwise_gather_output", "layers.*.w1": "rowwise"}
    names = ["", "layers", "layers.0.q", "layers.12.q", "layers.0.w1", "layers.0.w2", "head"]
    assert layers_of_plan(plan, names) == [
        Layer("layers.0.q", "colwise"),
        Layer("layers.12.q", "colwise"),
        Layer("layers.0.w1", "rowwise"),
        Layer("head", "colwise_gather_output"),
    ]


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        (rules(*tensor_jobs.RULES[:2]), {"b.q": "colwise", "b.out": "rowwise"}),
        (rules(tensor_jobs.RULES[2]), {"b.head_norm": SUMMED}),
        (rules({"patterns": [r"b\.q"], "gather_output": True}), {"b.q": "colwise_gather_output"}),
        (rules({"patterns": [r"b\.q"], "partition_type": "skip"}, *tensor_jobs.RULES[:1]), {}),
        (rules({"patterns": [r"b\.q"], "model_types": ["Llama"]}), {"b.q": "colwise"}),
        (rules({"patterns": [r"b\.q"], "model_types": ["qwen2"]}), {}),
        ({"preset_model": "llama"}, {"a.self_attn.q_proj": "colwise"}),
        (
            {"preset_model": "llama", **rules(*tensor_jobs.RULES[:1])},
            {"b.q": "colwise", "a.self_attn.q_proj": "colwise"},
        ),
        (
            {"preset_model": "llama", **rules(*tensor_jobs.RULES[:1], use_default_specs=False)},
            {"b.q": "colwise"},
        ),
    ],
)
def test_first_rule_that_matches_applies(block: dict[str, Any], expected: dict[str, str]) -> None:
    linear: dict[str, tuple[int, int]] = dict.fromkeys(
        ("b.q", "b.out", "a.self_attn.q_proj"), (8, 4)
    )
    found = layers_of_rules(block, linear, ["b.head_norm", "b"], "llama")
    assert {layer.name: layer.style for layer in found} == expected


@pytest.mark.parametrize("model_type", ["bloom", "phi3"])
def test_presets_that_do_not_fit_models_of_their_name(model_type: str) -> None:
    block, linear = {"preset_model": model_type.title()}, {"h.0.mlp.dense_h_to_4h": (8, 4)}
    with pytest.raises(ValueError, match=f"preset_model {model_type}: the attention of this model"):
        layers_of_rules(block, linear, [], model_type)
    layers_of_rules(block, linear, [], "own")


@pytest.mark.live
@pytest.mark.parametrize("model_type", ["bloom", "phi3"])
def test_attention_of_these_models_needs_all_heads(model_type: str) -> None:
    """A part of the heads, as the preset splits them, does not train."""
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "intermediate_size": 16, "vocab_size": 32}
    config = AutoConfig.for_model(model_type, num_attention_heads=4, pad_token_id=0, **sizes)
    model: Any = AutoModelForCausalLM.from_config(config)
    linear = {
        n: (m.out_features, m.in_features)
        for n, m in model.named_modules()
        if isinstance(m, nn.Linear)
    }
    layers = layers_of_rules({"preset_model": model_type}, linear, [], "own")
    for layer in layers:
        module = model.get_submodule(layer.name)
        by_columns = "col" in layer.style
        kept = module.weight.chunk(2, 0 if by_columns else 1)[0]
        module.weight = nn.Parameter(kept)
        if by_columns and module.bias is not None:
            module.bias = nn.Parameter(module.bias.chunk(2)[0])
    with pytest.raises(RuntimeError):
        model(input_ids=torch.ones(1, 4, dtype=torch.long))
