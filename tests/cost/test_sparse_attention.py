"""Scores with which sparse attention selects tokens, compared with transformers' indexer."""

import json
from pathlib import Path
from typing import Any

import pytest

import dsconfig
from dsconfig.facts import gather

GLM = Path(__file__).parents[1] / "oracle" / "expert_models" / "glm-5.2.json"


def components(length: int, stage: int, runtime: str) -> dict[str, int]:
    facts = gather(
        model=GLM,
        gpus=64,
        seq_len=length,
        micro_batch=1,
        precision="bf16",
        training_args={"gradient_checkpointing": True, "loss": "chunked"},
    )
    config: dict[str, Any] = {"zero_optimization": {"stage": stage}, "bf16": {"enabled": True}}
    config["train_micro_batch_size_per_gpu"] = 1
    resolution = dsconfig.resolve(config, facts, runtime=runtime)
    option = dsconfig.estimate(resolution, facts).options[0]
    return {each.name: each.bytes for each in option.device.components}


@pytest.mark.parametrize("runtime", ["dsengine", "deepspeed"])
@pytest.mark.parametrize("stage", [2, 3])
def test_scores_grow_with_the_square_of_the_length(stage: int, runtime: str) -> None:
    heads = json.loads(GLM.read_text())["index_n_heads"]
    found = components(65536, stage, runtime)["scores of sparse attention"]
    assert found == 8 * heads * 65536**2


@pytest.mark.live
def test_indexer_of_transformers_holds_two_copies() -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from transformers import GlmMoeDsaConfig
    from transformers.models.glm_moe_dsa import modeling_glm_moe_dsa as glm

    length, heads = 512, 8
    config = GlmMoeDsaConfig(
        hidden_size=64, index_n_heads=heads, index_head_dim=32, qk_rope_head_dim=16, q_lora_rank=32
    )
    indexer = glm.GlmMoeDsaIndexer(config, 0)
    rotary = torch.ones(1, length, 16), torch.zeros(1, length, 16)
    inputs = torch.randn(1, length, 64), torch.randn(1, length, 32)
    mask = torch.ones(1, length, length, dtype=torch.bool)
    positions = torch.arange(length)[None]
    with torch.profiler.profile(profile_memory=True) as profile:
        indexer(*inputs, rotary, mask, positions)
    alive = peak = 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            alive += event.nbytes()
            peak = max(peak, alive)
    assert peak == pytest.approx(8 * heads * length**2, rel=0.15)
