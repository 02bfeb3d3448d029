"""Degrees that a search tries for dsengine are degrees that the engine accepts."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import dsconfig
from dsconfig.cost import divisions
from dsconfig.facts import gather, hf_config
from dsconfig.runtimes.base import runtime_of
from dsengine.loop.planning import refuse_parallel

pytestmark = pytest.mark.live
DENSE = ("llama", "qwen2", "qwen3", "mistral", "gemma2", "gemma3_text", "phi3", "olmo2", "glm4")
MIXTURES = (
    "mixtral",
    "qwen3_moe",
    "qwen2_moe",
    "glm4_moe",
    "gpt_oss",
    "deepseek_v3",
    "ernie4_5_moe",
)


@given(data=st.data())
def test_engine_accepts_every_degree_of_a_search(data: st.DataObject) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    family = data.draw(st.sampled_from(DENSE + MIXTURES))
    kv_heads = data.draw(st.sampled_from((1, 2, 3, 4, 8)))
    heads = kv_heads * data.draw(st.sampled_from((1, 2, 3)))
    experts = data.draw(st.sampled_from((4, 6, 8, 12)))
    width = data.draw(st.sampled_from((24, 30, 32, 48)))
    sizes = {"num_local_experts": experts, "num_experts": experts, "n_routed_experts": experts}
    config = AutoConfig.for_model(
        family,
        hidden_size=heads * 8,
        head_dim=8,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        num_hidden_layers=2,
        intermediate_size=width,
        moe_intermediate_size=width,
        first_k_dense_replace=1,
        vocab_size=64,
        pad_token_id=0,
        **(sizes if family in MIXTURES else {}),
    )
    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(config)
    gpus = data.draw(st.sampled_from((2, 4, 6, 8, 12)))
    facts = gather(model=hf_config.model(config.to_dict()), gpus=gpus, seq_len=48)
    possible = divisions.possible(facts, runtime_of("dsengine"))
    if family in DENSE and kv_heads % 2 == 0:
        assert 2 in {divided.degrees.tensor for divided in possible}
    for divided in possible:
        degrees = divided.degrees
        document = dsconfig.read(config_with(degrees.tensor, degrees.expert, degrees.sequence))
        resolution = dsconfig.resolve(document, facts)
        assert not resolution.refusals, resolution.refusals
        refuse_parallel(dsconfig.plan(resolution, facts), model)


def config_with(tensor: int, expert: int, sequence: int) -> dict[str, Any]:
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 1,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
        "zero_optimization": {"stage": 2},
    }
    if tensor > 1:
        config["tensor_parallel"] = {"autotp_size": tensor}
    if expert > 1:
        config["expert_parallel"] = {"enabled": True, "autoep_size": expert}
    return config | ({"sequence_parallel_size": sequence} if sequence > 1 else {})
