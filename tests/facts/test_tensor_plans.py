"""What the tensor-parallel plan of a family splits; the engine's parts are compared live."""

import pytest

from dsconfig.facts.hf_attributes import recorded_types, tensor_plan
from dsconfig.facts.tensor_plans import EVENLY, Split, split_of, splits_attention


@pytest.mark.parametrize(
    ("family", "expected"),
    [("llama", True), ("gpt_neox", True), ("deepseek_v3", False), ("olmo2", False), ("own", True)],
)
def test_attention_is_split_by_heads(family: str, expected: bool) -> None:
    assert splits_attention(family) is expected


def test_number_of_families_with_undivided_attention() -> None:
    """docs/internals/memory.md states it."""
    planned = [family for family in recorded_types() if tensor_plan(family)]
    assert len(planned) == 144
    assert sum(not splits_attention(family) for family in planned) == 26 + 11


@pytest.mark.parametrize(
    ("module", "tensor", "shape", "family", "expected"),
    [
        ("model.layers.3.self_attn.q_proj", "weight", (8, 4), "llama", Split(0, 8)),
        ("model.layers.3.self_attn.o_proj", "weight", (4, 8), "llama", Split(1, 8)),
        ("model.layers.3.self_attn.o_proj", "bias", (4,), "llama", None),
        ("model.layers.3.input_layernorm", "weight", (4,), "llama", None),
        ("model.embed_tokens", "weight", (32, 4), "llama", Split(0, 32)),
        ("lm_head", "weight", (32, 4), "llama", Split(0, 32)),
        ("model.layers.0.mlp.experts", "gate_up_proj", (6, 16, 4), "mixtral", Split(1, 16)),
        ("model.layers.0.mlp.experts", "down_proj", (6, 4, 8), "mixtral", Split(2, 8)),
        ("model.layers.3.self_attn.o_proj", "weight", (4, 8), "deepseek_v3", None),
        ("blocks.0.norm", "weight", (4,), "own", EVENLY),
    ],
)
def test_split_of_a_tensor(
    module: str, tensor: str, shape: tuple[int, ...], family: str, expected: Split | None
) -> None:
    assert split_of(module, tensor, shape, family) == expected
