"""Comparison with the installed DeepSpeed."""

import pytest

from training.jobs import config
from training.ranks import Ranks

pytestmark = [pytest.mark.engine, pytest.mark.live]


@pytest.mark.parametrize("accumulation", [1, 3])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_losses_equal_deepspeed(
    ours: Ranks, deepspeed: Ranks, stage: int, accumulation: int, precision: str
) -> None:
    if stage == 0 and precision == "bf16":
        pytest.skip("DeepSpeed takes one optimizer step too many when it is built")
    settings = config(stage, accumulation, bf16={"enabled": precision == "bf16"})
    theirs = deepspeed.run("training.live_jobs:deepspeed_losses", config=settings, steps=8)[0]
    mine = ours.run("training.jobs:losses", config=settings, steps=8)[0]
    assert mine == pytest.approx(theirs, rel=1e-6 if precision == "fp32" else 1e-2)
