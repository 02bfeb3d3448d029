"""Random events during a run do not change its losses."""

from pathlib import Path

import pytest

from training.jobs import config
from training.ranks import Ranks

pytestmark = pytest.mark.engine

OFFLOADED = {"offload_optimizer": {"device": "cpu"}}
CONFIGS = {
    "stage0": config(0, 2),
    "stage1": config(1, 3, bf16={"enabled": True}),
    "stage2": config(2, 2, gradient_clipping=0.5),
    "stage3": config(3, 2, bf16={"enabled": True}),
    "offloaded": config(2, 2, bf16={"enabled": True}, zero=OFFLOADED),
    "all_offloaded": config(3, 2, zero=OFFLOADED | {"offload_param": {"device": "cpu"}}),
}
QUICK = ("all_offloaded",)
"""Run in `make test`."""


@pytest.mark.parametrize(
    ("name", "seed"),
    [
        *(
            pytest.param(name, 0, marks=[pytest.mark.long] * (name not in QUICK))
            for name in CONFIGS
        ),
        *(
            pytest.param(name, seed, marks=pytest.mark.deep)
            for name in CONFIGS
            for seed in range(1, 80)
        ),
    ],
)
def test_random_events_do_not_change_training(
    ranks: Ranks, tmp_path: Path, name: str, seed: int
) -> None:
    job = "training.soak_jobs:curve"
    expected = ranks.once(job, config=CONFIGS[name], folder="", seed=None)[0]
    seen = ranks.run(job, config=CONFIGS[name], folder=str(tmp_path), seed=seed)[0]
    assert seen == expected
