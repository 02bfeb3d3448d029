"""Forwards that ranks compute together equal one process, or raise one error on every rank."""

import re
from typing import Any

import pytest

from training.ranks import Ranks

pytestmark = pytest.mark.engine
JOBS = "training.contract_jobs"
REFUSED = {
    "no positions": "requires position_ids in every forward",
    "positional, no positions": "requires position_ids in every forward",
    "4-D mask": r"attention_mask is torch.bool \[2, 1, 16, 16\], but .* only padding",
    "float mask": r"attention_mask is torch.float32 \[2, 8\]",
    "labels": "pass shift_labels",
    "cache": "LlamaAttention attends from 8 tokens of a part to 16: .* nor forwards with a cache",
    "encoder": "encoder_hidden_states: sequence parallelism does not divide cross-attention",
    "mask on one rank": "ranks 0, 1 .* attention_mask is int64 .* on rank 1, but missing on rank 0",
    "unequal parts": r"input_ids is int64 \[2, 7\] on rank 1, but int64 \[2, 8\] on rank 0.* pad",
}
ROPES = (
    {"rope_type": "dynamic", "factor": 2.0},
    {
        "rope_type": "longrope",
        "short_factor": [1.0] * 4,
        "long_factor": [2.0] * 4,
        "original_max_position_embeddings": 12,
    },
)
LENGTH_DEPENDENT = [
    {"max_position_embeddings": 12, "rope_parameters": {"rope_theta": 1e4, **rope}}
    for rope in ROPES
]
"""Rotary embeddings with other frequencies for samples above 12 tokens."""
MAMBA = {"mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_state": 16}


@pytest.mark.live
@pytest.mark.parametrize("through_module", [False, True])
@pytest.mark.parametrize("way", ["keywords", "positional", "embeddings"])
def test_parts_of_sequences_equal_one_process(ranks: Ranks, way: str, through_module: bool) -> None:
    found = ranks.run(f"{JOBS}:divided_forward", way=way, through_module=through_module)
    assert found == pytest.approx([0, 0], abs=1e-5)


@pytest.mark.live
@pytest.mark.parametrize("way", ["keywords", "no positions", "mask on one rank"])
def test_compiled_forwards_are_checked_as_well(ranks: Ranks, way: str) -> None:
    options = {"way": way, "through_module": False, "compiled": True}
    first, second = ranks.run(f"{JOBS}:divided_forward", **options)
    if way == "keywords":
        assert [first, second] == pytest.approx([0, 0], abs=1e-5)
    else:
        assert first == second and re.search(REFUSED[way], first), first


@pytest.mark.live
@pytest.mark.parametrize("through_module", [False, True])
@pytest.mark.parametrize("way", REFUSED)
def test_inputs_that_cannot_be_divided(ranks: Ranks, way: str, through_module: bool) -> None:
    first, second = ranks.run(f"{JOBS}:divided_forward", way=way, through_module=through_module)
    assert first == second and re.search(REFUSED[way], first), first


@pytest.mark.live
@pytest.mark.parametrize(
    ("family", "changes", "words"),
    [
        ("FalconForCausalLM", {}, "does not call the function registered"),
        ("DogeForCausalLM", {}, "does not call the function registered"),
        ("FalconH1ForCausalLM", MAMBA, "need the whole sequence"),
        ("BartForCausalLM", {}, "has no position_ids"),
        ("BartForConditionalGeneration", {}, "is an encoder-decoder"),
        ("LlamaForSequenceClassification", {}, "combines the tokens of a sample"),
        ("Qwen3NextForCausalLM", {}, "need the whole sequence"),
        ("PersimmonForCausalLM", {}, "numbers the tokens of each part from 0"),
        ("EsmForMaskedLM", {"token_dropout": True, "mask_token_id": 5}, "token_dropout scales"),
    ],
)
def test_families_that_cannot_be_divided(
    ranks: Ranks, family: str, changes: dict[str, Any], words: str
) -> None:
    for after in ("", "LlamaForCausalLM"):
        options = {"family": family, "changes": changes, "after": after}
        first, second = ranks.run(f"{JOBS}:refused_family", **options)
        assert first == second and re.search(words, first), first


@pytest.mark.live
@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("GPTNeoXForCausalLM", {}),
        ("BertForMaskedLM", {}),
        ("AfmoeForCausalLM", {}),
        *(("LlamaForCausalLM", changes) for changes in LENGTH_DEPENDENT),
    ],
)
def test_families_that_are_divided(ranks: Ranks, family: str, changes: dict[str, Any]) -> None:
    found = ranks.run(f"{JOBS}:divided_family", family=family, changes=changes)
    assert found == pytest.approx([0, 0], abs=1e-5)


@pytest.mark.live
def test_whole_samples_beside_divided_ones(ranks: Ranks) -> None:
    found = ranks.run(f"{JOBS}:beside_divided", has_engine=True)
    assert found == pytest.approx([0, 0], abs=1e-5)


@pytest.mark.live
def test_model_without_an_engine_beside_divided_samples(ranks: Ranks) -> None:
    for message in ranks.run(f"{JOBS}:beside_divided", has_engine=False):
        assert "a model without an engine" in message


@pytest.mark.live
def test_engines_in_a_row(ranks: Ranks) -> None:
    for errors in ranks.run(f"{JOBS}:engines_in_a_row", count=10):
        assert errors == pytest.approx([0] * 10, abs=1e-5)


@pytest.mark.live
def test_model_that_is_distributed_again(ranks: Ranks) -> None:
    for errors in ranks.run(f"{JOBS}:distributed_again", times=4):
        assert errors == pytest.approx([0] * 4, abs=1e-5)


@pytest.mark.parametrize("axis", ["sequence", "tensor"])
def test_model_with_a_config_of_its_own(ranks: Ranks, axis: str) -> None:
    assert ranks.run(f"{JOBS}:with_own_config", axis=axis) == ["", ""]


@pytest.mark.parametrize("through_module", [False, True])
@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("samples", "input_ids has other values on rank 1 than on rank 0: .* the same samples"),
        ("lengths", r"input_ids is int64 \[2, 15\] on rank 1, but int64 \[2, 16\] on rank 0"),
    ],
)
def test_ranks_that_split_layers_need_the_same_samples(
    ranks: Ranks, case: str, words: str, through_module: bool
) -> None:
    options = {"case": case, "through_module": through_module}
    first, second = ranks.run(f"{JOBS}:split_forward", **options)
    assert first == second and re.search(words, first), first


def test_dropout_in_whole_layers_is_alike_on_ranks_that_split_others(ranks: Ranks) -> None:
    first, second = ranks.run(f"{JOBS}:with_dropout", steps=3)
    assert first == second
    assert first[:3] == first[3:]


@pytest.mark.live
def test_sampled_tokens_are_those_of_the_first_rank(ranks: Ranks) -> None:
    first, second = ranks.run(f"{JOBS}:sampled_tokens")
    assert first == second


@pytest.mark.live
@pytest.mark.parametrize("through_module", [False, True])
def test_ranks_that_divide_experts_generate_unequal_lengths(
    ranks: Ranks, through_module: bool
) -> None:
    job = f"{JOBS}:generated_with_experts"
    assert ranks.run(job, through_module=through_module) == [3, 7]


@pytest.mark.live
@pytest.mark.parametrize("stage", [0, 1, 2])
def test_rank_with_full_parameters_generates_alone(ranks: Ranks, stage: int) -> None:
    assert ranks.run(f"{JOBS}:generated_alone", stage=stage, seconds=40) == [0, 5]


@pytest.mark.live
@pytest.mark.parametrize("way", ["keywords", "no positions", "4-D mask", "labels"])
def test_models_with_adapters(ranks: Ranks, way: str) -> None:
    first, second = ranks.run(f"{JOBS}:adapted_forward", way=way)
    if way == "keywords":
        assert [first, second] == pytest.approx([0, 0], abs=1e-5)
    else:
        assert first == second and re.search(REFUSED[way], first), first
