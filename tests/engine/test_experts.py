"""Training with experts divided over ranks equals training in one process."""

from typing import Any

import pytest

from sweeps import sweep
from training import curves, expert_jobs
from training.ranks import Ranks, SharedRanks

JOB = "training.expert_jobs:divided"
CLIP = 0.3


def check(
    ranks: Ranks,
    kind: str,
    stage: int,
    *,
    number: int = 2,
    steps: int = 8,
    accumulation: int = 1,
    optimizer: str = "AdamW",
    degree: int = 2,
    **options: Any,
) -> None:
    """Compare with one process that sees the samples of all ``number`` ranks."""
    same: dict[str, Any] = {
        "steps": steps,
        "accumulation": accumulation,
        "optimizer": optimizer,
        "clip": CLIP,
    }
    expected = expert_jobs.one_process(kind, number, **same)
    got = ranks.run(JOB, kind=kind, stage=stage, degree=degree, **same, **options)
    curves.assert_equal(got, expected, clip=CLIP)


@pytest.mark.engine
@sweep(1, stage=[0, 1, 2, 3], window=[(1, "AdamW"), (4, "SGD")])
def test_experts_named_by_a_pattern(ranks: Ranks, stage: int, window: tuple[int, str]) -> None:
    accumulation, optimizer = window
    check(ranks, "own", stage, accumulation=accumulation, optimizer=optimizer)


@pytest.mark.engine
@pytest.mark.parametrize("stage", [0, 1, 3])
def test_three_experts_for_two_copies(ranks_of: SharedRanks, stage: int) -> None:
    """Each rank has three experts, which two ranks share unevenly."""
    check(ranks_of(4), "own", stage, number=4, steps=8, accumulation=2, optimizer="SGD")


@pytest.mark.engine
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_rank_whose_experts_no_token_chooses(ranks: Ranks, stage: int) -> None:
    check(ranks, "one expert for all", stage, steps=4)


@pytest.mark.engine
@pytest.mark.live
@pytest.mark.parametrize(("accumulation", "optimizer"), [(1, "SGD"), (4, "AdamW")])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_mixtral(ranks: Ranks, stage: int, accumulation: int, optimizer: str) -> None:
    check(ranks, "Mixtral", stage, accumulation=accumulation, optimizer=optimizer)


@pytest.mark.engine
@pytest.mark.live
@pytest.mark.parametrize(
    ("kind", "stage"), [("Qwen3Moe eager", 1), ("Qwen2Moe batched_mm", 2), ("Olmoe eager", 3)]
)
def test_families_and_implementations(ranks: Ranks, kind: str, stage: int) -> None:
    check(ranks, kind, stage, steps=6)


@pytest.mark.engine
@pytest.mark.live
@pytest.mark.parametrize(
    ("stage", "accumulation", "optimizer", "degree"),
    [(0, 1, "SGD", 2), (1, 4, "AdamW", 2), (1, 1, "SGD", 2), (3, 4, "SGD", 2), (3, 1, "AdamW", 4)],
)
def test_data_and_experts(
    ranks_of: SharedRanks, stage: int, accumulation: int, optimizer: str, degree: int
) -> None:
    options: dict[str, Any] = {"accumulation": accumulation, "optimizer": optimizer}
    check(ranks_of(4), "Mixtral", stage, number=4, degree=degree, **options)


OFFLOAD: dict[str, Any] = {"offload_optimizer": {"device": "cpu"}}
AVERAGING: list[dict[str, Any]] = [
    {"gradient_predivide_factor": 2.0},
    {"prescale_gradients": True},
]


@pytest.mark.engine
@pytest.mark.parametrize(
    ("stage", "more"),
    [
        (2, {"zero_optimization": {"stage": 2, **OFFLOAD}}),
        (3, {"zero_optimization": {"stage": 3, **OFFLOAD, "offload_param": {"device": "cpu"}}}),
        (1, {"activation_checkpointing": {}}),
        (3, {"activation_checkpointing": {}}),
    ],
)
def test_offload_and_recomputation(ranks: Ranks, stage: int, more: dict[str, Any]) -> None:
    check(ranks, "own", stage, steps=6, more=more)


@pytest.mark.engine
@pytest.mark.parametrize(("stage", "degree"), [(1, 2), (3, 2), (3, 4)])
def test_copies_of_the_states(ranks_of: SharedRanks, stage: int, degree: int) -> None:
    more = {"zero_optimization": {"stage": stage, "mics_shard_size": 2}}
    check(
        ranks_of(4),
        "four experts" if degree > 2 else "own",
        stage,
        number=4,
        steps=4,
        degree=degree,
        more=more,
    )


@pytest.mark.engine
@sweep(1, stage=[0, 1, 3], more=AVERAGING)
def test_averaging(ranks_of: SharedRanks, stage: int, more: dict[str, Any]) -> None:
    check(ranks_of(4), "own", stage, number=4, steps=3, optimizer="SGD", more=more)


@pytest.mark.engine
@sweep(1, precision=["bf16", "fp16"], stage=[0, 1, 3], offload=[{}, OFFLOAD])
def test_16_bits(
    ranks_of: SharedRanks, precision: str, stage: int, offload: dict[str, Any]
) -> None:
    """In fp16 the first steps overflow, on both ranks alike."""
    more = {precision: {"enabled": True}, "zero_optimization": {"stage": stage, **offload}}
    options: dict[str, Any] = {"kind": "own", "stage": stage, "steps": 4, "more": more}
    first, second = ranks_of(2).run(JOB, degree=2, **options)
    whole, _ = ranks_of(2).run(JOB, degree=1, **options)
    assert first == second
    for divided, undivided in zip(first, whole, strict=True):
        assert divided == pytest.approx(undivided, rel=2e-2)
