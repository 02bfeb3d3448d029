"""Live bytes of real dsengine runs on 2 ranks are within 2 % of the estimate.

Each real run is compared with the estimate and with the dry run of the same model.
"""

from dataclasses import replace
from typing import Any

import pytest

import dsconfig
import dsengine
from cost import live_jobs
from cost.releases import TOLERANCE, agrees
from dsconfig.cost.estimate import Phase
from sweeps import sweep
from training.ranks import Ranks

pytestmark = pytest.mark.engine
LEAN = {
    "stage3_param_persistence_threshold": 0,
    "stage3_max_reuse_distance": 0,
    "stage3_prefetch_bucket_size": 0,
}
"""Every unit is gathered around its use and freed after it."""


def config(stage: int, precision: str, accumulation: int, **zero: Any) -> dict[str, Any]:
    return {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": accumulation,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
        "gradient_clipping": 1.0,
        "zero_optimization": {"stage": stage, **zero},
        **({} if precision == "fp32" else {precision: {"enabled": True}}),
    }


FACTS = dsconfig.Facts(
    world_size=2,
    nodes=1,
    device=dsconfig.DeviceFacts(name="cpu", kind="cpu"),
    model=dsengine.describe(live_jobs.Model()),
    training=dsconfig.TrainingFacts(arguments={"zero_init": False}),
)


def dry_run(settings: dict[str, Any], rank: int = 0) -> dict[str, Any]:
    plan = dsconfig.plan(dsconfig.resolve(settings, FACTS), FACTS)
    return dsengine.simulate(plan, live_jobs.Model, loss=live_jobs.loss_of, rank=rank, device="cpu")


def check(ranks: Ranks, settings: dict[str, Any]) -> None:
    """Compare estimate and dry run with the real run, by rank and phase.

    Dry runs are slow: only rank 0 is run for windows of one micro batch, else only rank 1.
    """
    dry_rank = int(settings["gradient_accumulation_steps"] > 1)
    expected = dsconfig.estimate(dsconfig.resolve(settings, FACTS), FACTS).options[0].device
    for rank, real in enumerate(ranks.run("cost.live_jobs:measured", config=settings)):
        peaks, remaining = real["peaks"], real["remaining"]
        for phase, peak in peaks.items():
            assert agrees(expected.phase_bytes[phase], peak), f"peak of {phase}"
        assert dict(expected.end_bytes) == pytest.approx(remaining, rel=TOLERANCE), "between phases"
        if rank == dry_rank:
            dry = dry_run(settings, rank)["phases"]
            assert dry == pytest.approx(peaks, rel=TOLERANCE), f"dry run of rank {rank}"


@sweep(1, stage=[0, 1, 2, 3], precision=["fp32", "bf16"], accumulation=[1, 4])
def test_phases_are_predicted_and_dry_run_equals_real_run(
    host_ranks: Ranks, stage: int, precision: str, accumulation: int
) -> None:
    check(host_ranks, config(stage, precision, accumulation))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_units_freed_after_forward_are_predicted(host_ranks: Ranks, precision: str) -> None:
    check(host_ranks, config(3, precision, 1, **LEAN))


@sweep(1, stage=[0, 1, 2, 3], precision=["fp32", "bf16"])
def test_divided_experts_are_predicted(host_ranks: Ranks, stage: int, precision: str) -> None:
    """At stage 0 torch sums gradients of copies in other buffers than the estimate has."""
    block = {"enabled": True, "autoep_size": 2, "moe_layer_pattern": r"blocks\.\d+"}
    settings = {**config(stage, precision, 1, **(LEAN if stage == 3 else {}))}
    settings["expert_parallel"] = block
    facts = replace(FACTS, model=dsengine.describe(live_jobs.Model(live_jobs.Mixture)))
    expected = dsconfig.estimate(dsconfig.resolve(settings, facts), facts).options[0].device
    for real in host_ranks.run("cost.live_jobs:measured", config=settings, mixed=True):
        assert dict(expected.end_bytes) == pytest.approx(real["remaining"], rel=TOLERANCE)
        phases = ("forward", "step", *(("backward",) if stage else ()))
        peaks = {phase: real["peaks"][phase] for phase in phases}
        estimated = {phase: expected.phase_bytes[Phase(phase)] for phase in peaks}
        assert estimated == pytest.approx(peaks, rel=TOLERANCE)


def test_fp32_communication_is_predicted(host_ranks: Ranks) -> None:
    check(host_ranks, {**config(2, "bf16", 1), "communication_data_type": "fp32"})


@sweep(1, stage=[0, 1], accumulation=[1, 4])
def test_fp32_accumulation_is_predicted(host_ranks: Ranks, stage: int, accumulation: int) -> None:
    sums = {"data_types": {"grad_accum_dtype": "fp32"}}
    check(host_ranks, config(stage, "bf16", accumulation) | sums)


@pytest.mark.parametrize(
    "stage", [0, *(pytest.param(stage, marks=pytest.mark.long) for stage in (1, 2)), 3]
)
def test_dry_run_traffic_equals_real_run(host_ranks: Ranks, stage: int) -> None:
    for settings in (config(stage, "bf16", 4), config(stage, "fp32", 1, **LEAN)):
        for rank, real in enumerate(host_ranks.run("cost.live_jobs:sent", config=settings)):
            assert dry_run(settings, rank)["traffic"] == real
