"""Parallel degrees that dsengine cannot execute: the key that sets them, and what to write."""

import json
from pathlib import Path
from typing import Any

import pytest

import dsconfig
from dsconfig.facts import gather

SIZES: dict[str, Any] = {
    "hidden_size": 384,
    "num_hidden_layers": 2,
    "intermediate_size": 1024,
    "vocab_size": 512,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
}
MIXTRAL: dict[str, Any] = {
    "model_type": "mixtral",
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
}
RULES = {"layer_specs": [{"patterns": [".*q_proj.weight$"], "partition_type": "column"}]}


def refusals(
    tmp_path: Path, model: dict[str, Any], keys: dict[str, Any], flag: int | None = None
) -> list[tuple[str, str]]:
    """Return pointer, and message with help, of what stops dsengine."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**SIZES, **model}))
    facts = gather(model=path, gpus=4, seq_len=64, tensor_parallel=flag)
    config = {"train_micro_batch_size_per_gpu": 1, **keys}
    found = dsconfig.resolve(config, facts, runtime="dsengine").diagnostics
    return [
        (each.pointer, f"{each.message}; {each.help}")
        for each in found
        if each.code in ("DSC478", "DSC479")
    ]


@pytest.mark.parametrize(
    ("keys", "pointer"),
    [
        ({"tensor_parallel": {"autotp_size": 4}}, "/tensor_parallel/autotp_size"),
        ({"tensor_parallel": {"autotp_size": 4.0}}, "/tensor_parallel/autotp_size"),
        ({"sequence_parallel_size": 4}, "/sequence_parallel_size"),
    ],
)
def test_indivisible_degree_is_reported_at_its_key(
    keys: dict[str, Any], pointer: str, tmp_path: Path
) -> None:
    heads = {"model_type": "llama", "num_attention_heads": 6, "num_key_value_heads": 6}
    ((found, text),) = refusals(tmp_path, heads, keys)
    assert found == pointer and " divisible" in text and "use 2" in text


@pytest.mark.parametrize("model", [{"model_type": "gpt2"}, {"model_type": "doge"}])
def test_model_without_a_usable_tensor_plan_is_refused(
    model: dict[str, Any], tmp_path: Path
) -> None:
    ((pointer, text),) = refusals(tmp_path, model, {"tensor_parallel": {"autotp_size": 2}})
    assert pointer == "/tensor_parallel/autotp_size"
    assert model["model_type"] in text and "partition_config.layer_specs" in text
    ((pointer, _),) = refusals(tmp_path, model, {}, flag=2)
    assert pointer == ""


@pytest.mark.parametrize(
    ("model", "more"),
    [
        ({"model_type": "llama"}, {}),
        (MIXTRAL, {}),
        (MIXTRAL, {"preset_model": "mixtral"}),
        ({"model_type": "gpt2"}, {"partition_config": RULES}),
        ({"model_type": "a_type_of_remote_code"}, {}),
    ],
)
def test_plans_and_rules_are_accepted(
    model: dict[str, Any], more: dict[str, Any], tmp_path: Path
) -> None:
    assert not refusals(tmp_path, model, {"tensor_parallel": {"autotp_size": 2, **more}})
