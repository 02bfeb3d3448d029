"""Non-attention layers of hybrid models: what they keep and compute."""

import json
from pathlib import Path
from typing import Any

import pytest

import dsconfig
from dsconfig.cost.estimate import Option
from dsconfig.cost.mixers import mixer_bytes
from dsconfig.facts import gather, named_model
from dsconfig.facts.mixers import Mixer, Mixing

MAMBA_2 = Mixer(kind=Mixing.MAMBA_2, heads=128, head=64, key_heads=8, key=128, taps=4)


def test_mamba_2_keeps_projection_and_scan_output() -> None:
    projected = 2 * 8192 + 2 * 8 * 128 + 128
    assert mixer_bytes(MAMBA_2, 2) == 2 * (projected + 8192) + 4


def test_delta_rule_keeps_queries_keys_values_and_chunk_rows() -> None:
    mixer = Mixer(kind=Mixing.DELTA, heads=32, head=128, key_heads=16, key=128, taps=4)
    keys, values = 2048, 4096
    rows_and_gates = 2 * 66 * 32 + 32 * 32 + 8 * 16
    assert mixer_bytes(mixer, 2) == 2 * (4 * keys + 5 * values) + rows_and_gates


@pytest.mark.parametrize("name", ["qwen3-next-80b-a3b", "qwen3.5-9b", "qwen3.5-35b-a3b"])
def test_catalogue_hybrid_has_its_blocks(name: str) -> None:
    tree = named_model.model(name)
    shape = tree.architecture
    assert tree.root is not None and shape is not None
    assert 4 * shape.attentions == shape.layers
    kinds = {block.mixers[0].kind for block in shape.kinds}
    assert kinds == {Mixing.ATTENTION, Mixing.DELTA}


HYBRID: dict[str, Any] = {
    "model_type": "bamba",
    "hidden_size": 1024,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "intermediate_size": 2816,
    "vocab_size": 32000,
    "mamba_n_heads": 32,
    "mamba_d_head": 64,
    "mamba_d_state": 64,
    "mamba_n_groups": 1,
}


def option(folder: Path, length: int, attention: list[int], **arguments: Any) -> Option:
    file = folder / "config.json"
    file.write_text(json.dumps({**HYBRID, "attn_layer_indices": attention}))
    facts = gather(
        model=file,
        gpus=1,
        device="a100-80gb",
        seq_len=length,
        training_args=arguments,
    )
    config = {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}}
    resolution = dsconfig.resolve(config, facts)
    assert resolution.ok
    return dsconfig.estimate(resolution, facts).options[0]


def activations(found: Option) -> int:
    return sum(each.bytes for each in found.device.components if each.name == "activations")


def test_eager_scores_grow_only_in_attention_blocks(tmp_path: Path) -> None:
    """8 heads' worth of bytes per pair of tokens in each block with attention, none elsewhere."""

    def beyond_tokens(attention: list[int]) -> int:
        given = {"attn_implementation": "eager"}
        short, long = (option(tmp_path, size, attention, **given) for size in (512, 1024))
        return activations(long) - 2 * activations(short)

    assert beyond_tokens([]) == pytest.approx(0, abs=8)
    one, three = beyond_tokens([2]), beyond_tokens([2, 5, 7])
    assert three == pytest.approx(3 * one, rel=1e-3) and one > 0


def test_score_flops_grow_only_in_attention_blocks(tmp_path: Path) -> None:
    def per_token(length: int, attention: list[int]) -> float:
        step = option(tmp_path, length, attention).step
        assert step is not None and step.mfu is not None
        return step.mfu * step.seconds / length

    assert per_token(65536, []) == pytest.approx(per_token(4096, []))
    assert per_token(65536, [0, 4]) > 1.1 * per_token(4096, [0, 4])


def test_formula_names_counted_kernels(tmp_path: Path) -> None:
    found = option(tmp_path, 1024, [2])
    formulas = [each.formula for each in found.device.components if each.name == "activations"]
    assert formulas and all("mamba-ssm" in each for each in formulas)
