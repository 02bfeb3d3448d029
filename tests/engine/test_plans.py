"""A run from a plan file is bitwise equal to the run from its config."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import dsconfig
from dsconfig import Mesh, gather
from training.jobs import config
from training.ranks import RankError, Ranks

pytestmark = pytest.mark.engine


def plan_file(settings: dict[str, Any], folder: Path, version: str | None = None) -> str:
    """Plan like ``dsconfig plan``, without the model or the ranks' device."""
    facts = gather(gpus=2, nodes=1)
    plan = dsconfig.plan(dsconfig.resolve(settings, facts, version=version), facts)
    path = folder / "plan.json"
    path.write_text(plan.to_json())
    return str(path)


@pytest.mark.parametrize(
    "settings",
    [
        config(0, 2),
        config(2, gradient_clipping=0.3, bf16={"enabled": True}),
        config(3, 2, zero={"mics_shard_size": 1, "stage3_prefetch_bucket_size": 100}),
        config(3, scheduler={"type": "WarmupLR", "params": {"warmup_num_steps": 3}}),
    ],
    ids=["stage 0", "stage 2, bf16", "stage 3, mics", "stage 3"],
)
def test_plan_file_trains_like_its_config(
    ranks: Ranks, tmp_path: Path, settings: dict[str, Any]
) -> None:
    path = plan_file(settings, tmp_path)
    from_config = ranks.run("training.plan_jobs:from_config_or_plan", config=settings)
    assert ranks.run("training.plan_jobs:from_config_or_plan", plan=path) == from_config
    assert from_config[0]["digest"] == from_config[1]["digest"]


@pytest.mark.parametrize(
    ("mesh", "reason"),
    [
        (
            Mesh(shard=2, expert=2),
            "autoep_size 2: Tied has no experts.*zero_optimization.stage 3",
        ),
        (Mesh(pipeline=2), "build a PipelineModule with num_stages=2"),
    ],
)
@pytest.mark.parametrize("stage", [0, 2])
def test_plan_that_splits_the_model_is_refused(
    ranks: Ranks, tmp_path: Path, mesh: Mesh, reason: str, stage: int
) -> None:
    facts = gather(gpus=2, nodes=1)
    plan = dsconfig.plan(dsconfig.resolve(config(stage), facts), facts)
    path = tmp_path / "plan.json"
    path.write_text(replace(plan, mesh=mesh).to_json())
    with pytest.raises(RankError, match=f"(?s){reason}"):
        ranks.run("training.plan_jobs:from_config_or_plan", plan=str(path))


def test_launcher_plan_uses_its_release_defaults(ranks: Ranks, tmp_path: Path) -> None:
    path = plan_file(config(1), tmp_path, "0.16.4")
    launched = ranks.run("training.plan_jobs:from_launcher", plan=path)
    assert [result["clipping"] for result in launched] == [0.0, 0.0]
    own = ranks.run("training.plan_jobs:from_own_config", plan=path, config=config(1))
    assert [result["clipping"] for result in own] == [1.0, 1.0]
