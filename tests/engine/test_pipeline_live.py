"""Pipelines equal DeepSpeed's at stage 1."""

import pytest

from training.ranks import Ranks, SharedRanks

pytestmark = [pytest.mark.engine, pytest.mark.live]


@pytest.mark.parametrize(("kind", "size"), [("tied matrix", 2), ("untied", 2), ("tied matrix", 4)])
def test_losses_and_norms_equal_deepspeed(ranks_of: SharedRanks, kind: str, size: int) -> None:
    """Two stages, with one or two replicas, while clipping."""
    options = {"kind": kind, "stage": 1, "stages": 2, "steps": 6, "clip": 0.2}
    with Ranks(size) as deepspeed:
        theirs = deepspeed.run("training.pipeline_live_jobs:deepspeed_curve", **options)[0]
    mine = ranks_of(size).run("training.pipeline_jobs:piped", **options)[0]
    for own, expected in zip(mine, theirs, strict=True):
        assert own == pytest.approx(expected, rel=1e-5)
