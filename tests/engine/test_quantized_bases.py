"""Adapters on base weights that bitsandbytes has packed into 4 or 8 bits."""

from pathlib import Path
from typing import Any

import pytest
import torch

from training.ranks import Ranks, SharedRanks

for package in ("bitsandbytes", "peft", "transformers"):
    pytest.importorskip(package)
pytestmark = [pytest.mark.live, pytest.mark.engine]
JOBS = "training.quantized_jobs"

NESTED = {"weight.nested_absmax", "weight.nested_offset", "weight.quant_map"}

COMBINATIONS = [
    ("nf4", 1, "uint8"),
    ("nf4", 2, "bfloat16"),
    ("nf4", 3, "uint8"),
    ("fp4", 3, "float32"),
    ("8bit", 1, "uint8"),
    ("8bit", 2, "uint8"),
]


@pytest.mark.parametrize(("kind", "stage", "storage"), COMBINATIONS)
def test_training_matches_one_process(
    ranks_of: SharedRanks, kind: str, stage: int, storage: str
) -> None:
    two, one = ranks_of(2), ranks_of(1)
    expected = one.run(f"{JOBS}:losses", kind=kind, stage=0)[0]
    found = two.run(f"{JOBS}:losses", kind=kind, stage=stage, storage=storage)[0]
    for got, want in zip(found, expected, strict=True):
        assert got == pytest.approx(want, rel=1e-5)


@pytest.mark.parametrize(("kind", "stage"), [("nf4", 3), ("8bit", 2)])
def test_mixed_precision_equals_stage_0(ranks: Ranks, kind: str, stage: int) -> None:
    found = [
        ranks.run(f"{JOBS}:losses", kind=kind, stage=each, precision="bf16")[0]
        for each in (0, stage)
    ]
    for got, want in zip(*found, strict=True):
        assert got == (want[0], pytest.approx(want[1], rel=1e-6))


@pytest.mark.parametrize(("kind", "stage"), [("fp4", 3), ("8bit", 1)])
def test_the_engine_packs_what_is_not_packed(ranks: Ranks, kind: str, stage: int) -> None:
    found = [
        ranks.run(f"{JOBS}:losses", kind=kind, stage=stage, pack=pack)[0] for pack in (True, False)
    ]
    assert found[1] == found[0]


@pytest.mark.parametrize(("kind", "stage"), [("nf4", 3), ("8bit", 2)])
def test_a_checkpoint_restores_packed_weights_on_other_ranks(
    ranks_of: SharedRanks, tmp_path: Path, kind: str, stage: int
) -> None:
    arguments = {"kind": kind, "stage": stage, "folder": str(tmp_path)}
    weights, losses = ranks_of(2).run(f"{JOBS}:saved", **arguments)[0]
    for size in (1, 2):
        found, curve = ranks_of(size).run(f"{JOBS}:resumed", **arguments)[0]
        _compare(found, weights)
        for got, want in zip(curve, losses, strict=True):
            assert got == (want if size == 2 else pytest.approx(want, rel=1e-5))


def test_a_checkpoint_without_frozen_weights_needs_the_same_base(
    ranks: Ranks, tmp_path: Path
) -> None:
    arguments = {"kind": "nf4", "stage": 3, "folder": str(tmp_path)}
    weights, losses = ranks.run(f"{JOBS}:saved", **arguments, exclude_frozen_parameters=True)[0]
    found, curve = ranks.run(f"{JOBS}:resumed", **arguments, seed=0)[0]
    _compare(found, weights)
    assert curve == losses


@pytest.mark.parametrize(("kind", "stage"), [("nf4", 3), ("8bit", 1)])
def test_exports(ranks: Ranks, kind: str, stage: int) -> None:
    for found in ranks.run(f"{JOBS}:exported", kind=kind, stage=stage):
        assert found["adapter"]
        assert found["packed"]
        assert found["adapters in module"] == "torch.bfloat16"
        assert "lora='adapter'" in found["error"]
        assert set(found["scales"]) >= ({"SCB"} if kind == "8bit" else NESTED)


def test_a_rank_stores_its_shard_of_rank_0s_weights(ranks: Ranks) -> None:
    for found in ranks.run(f"{JOBS}:shard_bytes", stage=3, seed_of_others=9):
        assert found["shard"] == found["full"] // 2
        assert found["different"] == 0


def test_eight_bits_are_refused_at_stage_3(ranks: Ranks) -> None:
    with pytest.raises(RuntimeError, match=r"stage 3 cannot shard.*load the model in 4 bits"):
        ranks.run(f"{JOBS}:losses", kind="8bit", stage=3)


def _compare(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found.keys() == expected.keys()
    assert [name for name in found if not torch.equal(found[name], expected[name])] == []
