"""Training with layers split over ranks equals training in one process."""

from typing import Any

import pytest

from dsconfig.features import table
from dsengine.parallel.tensor import STYLES
from dsengine.parallel.tensor_plan import PACKED_GATHERED, PRESETS, VOCABULARY, first_rule
from sweeps import sweep
from training import curves, tensor_jobs
from training.ranks import Ranks, SharedRanks

CLIP = 0.5
KINDS = ["causal", "window", "left padding", "gemma 3", "qwen 3", "minicpm 3", "apertus", "mixtral"]


def check(
    ranks: Ranks, kind: str, stage: int, *, replicas: int = 1, steps: int = 6, **options: Any
) -> None:
    one = {
        name: value for name, value in options.items() if name not in ("sequence", "more", "block")
    }
    expected = tensor_jobs.one_process(kind, replicas, steps, clip=CLIP, **one)
    job = "training.tensor_jobs:divided"
    got = ranks.run(job, kind=kind, stage=stage, steps=steps, clip=CLIP, **options)
    curves.assert_equal(got, expected, clip=CLIP)


@pytest.mark.engine
@sweep(1, stage=[0, 1, 2, 3], window=[(1, "AdamW"), (4, "SGD")])
def test_layers_split_by_rules(ranks: Ranks, stage: int, window: tuple[int, str]) -> None:
    accumulation, optimizer = window
    check(ranks, "rules", stage, accumulation=accumulation, optimizer=optimizer)


@pytest.mark.engine
@pytest.mark.parametrize(
    "stage", [0, *(pytest.param(stage, marks=pytest.mark.long) for stage in (1, 2)), 3]
)
def test_several_matrices_in_one_weight(ranks: Ranks, ranks_of: SharedRanks, stage: int) -> None:
    check(ranks, "fused", stage, optimizer="SGD", accumulation=2)
    check(ranks_of(4), "fused", stage, replicas=2)


@pytest.mark.engine
@pytest.mark.parametrize(
    "stage", [0, *(pytest.param(stage, marks=pytest.mark.long) for stage in (1, 2)), 3]
)
def test_computation_in_tiles(ranks: Ranks, stage: int) -> None:
    options: dict[str, Any] = {"steps": 6, "accumulation": 2, "optimizer": "SGD", "clip": CLIP}
    expected = tensor_jobs.one_process("rules", 1, **options)
    got = ranks.run("training.tensor_jobs:divided", kind="tiled", stage=stage, **options)
    curves.assert_equal(got, expected, clip=CLIP)


@pytest.mark.engine
@pytest.mark.live
@sweep(1, stage=[0, 1, 2, 3], kind=["causal", "gemma 3"])
def test_logits_split_along_the_vocabulary(ranks: Ranks, kind: str, stage: int) -> None:
    """The head of ``gemma 3`` is tied to its embedding."""
    check(ranks, kind, stage, block={"vocab_parallel_lm_head": True}, accumulation=2)


@pytest.mark.engine
@pytest.mark.parametrize(
    "stage", [*(pytest.param(stage, marks=pytest.mark.long) for stage in (0, 2)), 1, 3]
)
def test_data_and_tensor(ranks_of: SharedRanks, stage: int) -> None:
    check(ranks_of(4), "rules", stage, replicas=2, accumulation=2, optimizer="SGD")


@pytest.mark.engine
@sweep(1, stage=[0, 1], key=["prescale_gradients", "gradient_predivide_factor"])
def test_averaging_of_data_and_tensor(ranks_of: SharedRanks, stage: int, key: str) -> None:
    more = {key: True if key == "prescale_gradients" else 2.0}
    check(ranks_of(4), "rules", stage, replicas=2, optimizer="SGD", more=more)


@pytest.mark.engine
@pytest.mark.live
@sweep(1, kind=KINDS, stage=[0, 1, 2, 3])
def test_plans_of_transformers(ranks: Ranks, kind: str, stage: int) -> None:
    check(ranks, kind, stage, optimizer="SGD", steps=20)


@pytest.mark.engine
@pytest.mark.live
@pytest.mark.parametrize(
    ("kind", "stage", "accumulation"),
    [("causal", 0, 1), ("qwen 3", 1, 4), ("gemma 3", 2, 1), ("qwen 3", 3, 4)],
)
def test_data_and_tensor_of_transformers(
    ranks_of: SharedRanks, kind: str, stage: int, accumulation: int
) -> None:
    check(ranks_of(4), kind, stage, replicas=2, accumulation=accumulation, steps=8)


@pytest.mark.engine
@pytest.mark.live
@pytest.mark.parametrize(("kind", "stage"), [("causal", 0), ("window", 2), ("qwen 3", 3)])
def test_sequence_and_tensor(ranks_of: SharedRanks, kind: str, stage: int) -> None:
    check(ranks_of(4), kind, stage, sequence=2, accumulation=2, optimizer="SGD", steps=8)


OFFLOAD: dict[str, Any] = {"offload_optimizer": {"device": "cpu"}}


@pytest.mark.engine
@pytest.mark.parametrize(
    ("stage", "more"),
    [
        (2, {"zero_optimization": {"stage": 2, **OFFLOAD}}),
        (3, {"zero_optimization": {"stage": 3, **OFFLOAD, "offload_param": {"device": "cpu"}}}),
        (1, {"activation_checkpointing": {}}),
    ],
)
def test_offload_and_recomputation(ranks: Ranks, stage: int, more: dict[str, Any]) -> None:
    check(ranks, "rules", stage, more=more)


@pytest.mark.engine
@sweep(1, precision=["bf16", "fp16"], stage=[0, 1, 3], offload=[{}, OFFLOAD])
def test_16_bits(
    ranks_of: SharedRanks, precision: str, stage: int, offload: dict[str, Any]
) -> None:
    """In fp16 the first steps overflow, on both ranks alike."""
    more = {precision: {"enabled": True}, "zero_optimization": {"stage": stage, **offload}}
    options: dict[str, Any] = {"kind": "rules", "stage": stage, "steps": 4, "more": more}
    job = "training.tensor_jobs:divided"
    first, second = ranks_of(2).run(job, ranks=2, **options)
    (one,) = ranks_of(1).run(job, ranks=1, **options)
    assert first == second
    for split, whole in zip(first, one, strict=True):
        assert split == pytest.approx(whole, rel=2e-2)


@pytest.mark.engine
def test_adafactor_is_refused(ranks: Ranks) -> None:
    optimizer = {"type": "Adafactor", "params": {"lr": 1e-2}}
    options: dict[str, Any] = {"kind": "rules", "block": {}, "more": {"optimizer": optimizer}}
    for message in ranks.run("training.tensor_input_jobs:refused", **options):
        assert "DSC762 /optimizer/type: optimizer.type: Adafactor divides its states" in message


@pytest.mark.engine
@pytest.mark.parametrize("stage", [0, 3])
def test_odd_vocabulary_stays_whole(ranks: Ranks, stage: int) -> None:
    check(ranks, "odd vocabulary", stage)


@pytest.mark.torch
def test_tune_knows_the_styles_that_the_engine_applies() -> None:
    of_rules = {PACKED_GATHERED, VOCABULARY}
    assert (STYLES.keys() - of_rules) | {"replicate"} == table.STYLES


@pytest.mark.live
def test_presets_are_those_of_deepspeed() -> None:
    """The same layers are split in the same way, up to the sum of gradients that it leaves out."""
    from deepspeed.module_inject.autotp_config import AutoTPPresets

    attention = [f"a.self_attn.{n}_proj" for n in ("q", "k", "v", "o", "qkv", "q_b", "kv_b", "q_a")]
    mlp = [f"a.mlp.{n}_proj" for n in ("up", "gate", "down", "gate_up")]
    experts = [f"a.block_sparse_moe.experts.0.w{n}" for n in (1, 2, 3)]
    experts += [
        f"a.mlp.{at}.{n}_proj" for at in ("experts.3", "shared_experts") for n in ("up", "down")
    ]
    old = ["a.self_attention.dense", "a.self_attention.query_key_value", "a.mlp.dense_h_to_4h"]
    names = [*attention, *mlp, *experts, *old, "a.mlp.dense_4h_to_h", "a.mlp.gate", "lm_head"]
    for preset, rules in PRESETS.items():
        theirs: Any = AutoTPPresets.get_preset(preset)
        for name in names:
            spec = theirs.find_matching_spec(f"{name}.weight")
            rule = first_rule(rules, f"{name}.weight") or {"partition_type": "skip"}
            kind = "skip" if spec is None else spec.partition_type.value
            assert rule["partition_type"] == kind, (preset, name)
            shape = None if spec is None else spec.shape
            assert rule.get("shape") == (list(shape) if shape else None), (preset, name)
