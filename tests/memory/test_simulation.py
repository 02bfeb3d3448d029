"""The dry run: the engine's own code on fake tensors says what the estimate says."""

from typing import Any

import pytest

import dsconfig
import dsengine
from dsconfig.facts import from_catalogue
from dsconfig.facts.gathering import gather

pytestmark = pytest.mark.engine


def config(stage: int, precision: str = "bf16", accumulation: int = 1) -> dict[str, Any]:
    return {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": accumulation,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
        "zero_optimization": {"stage": stage},
        **({} if precision == "fp32" else {precision: {"enabled": True}}),
    }


@pytest.mark.parametrize(
    ("stage", "precision", "accumulation", "ranks"),
    [
        (1, "bf16", 1, 2),
        (1, "fp32", 2, 2),
        (2, "bf16", 2, 8),
        (3, "bf16", 1, 2),
        (3, "fp32", 1, 64),
    ],
)
def test_a_dry_run_agrees_with_the_estimate(
    stage: int, precision: str, accumulation: int, ranks: int
) -> None:
    facts = gather(world_size=ranks, model="gpt2")
    resolution = dsconfig.resolve(config(stage, precision, accumulation), facts)
    result = dsengine.simulate(dsconfig.plan(resolution, facts), "gpt2")
    device = dsconfig.estimate(resolution, facts).options[0].device
    for phase in ("forward", "backward", "step"):
        assert device.phase_bytes[phase] == pytest.approx(result["phases"][phase], rel=0.02), phase


def test_traffic_of_a_step_is_one_reduction_and_one_gather_of_the_model() -> None:
    facts = gather(world_size=8, model="qwen2.5-0.5b")
    plan = dsconfig.plan(dsconfig.resolve(config(2), facts), facts)
    traffic = dsengine.simulate(plan, "qwen2.5-0.5b")["traffic"]
    model = from_catalogue.model("qwen2.5-0.5b")
    for collective in ("reduce_scatter_base", "allgather_base"):
        assert traffic[collective] == pytest.approx(2 * model.parameters, rel=0.01)


def test_stage_0_and_unknown_layouts_are_refused_with_a_reason() -> None:
    facts = gather(world_size=2, model="gpt2")
    plan = dsconfig.plan(dsconfig.resolve(config(0), facts), facts)
    with pytest.raises(ValueError, match="stage 1, 2 or 3"):
        dsengine.simulate(plan, "gpt2")
    counted = gather(world_size=2, params="1e8")
    plan = dsconfig.plan(dsconfig.resolve(config(2), counted), counted)
    assert counted.model is not None
    with pytest.raises(ValueError, match="not known"):
        dsengine.simulate(plan, counted.model)
