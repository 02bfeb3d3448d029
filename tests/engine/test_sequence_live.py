"""Sequence parallelism equals DeepSpeed's where that is right: causal attention, stage 3."""

import pytest

from training.ranks import Ranks

pytestmark = [pytest.mark.engine, pytest.mark.live]


@pytest.mark.parametrize(("optimizer", "accumulation"), [("AdamW", 1), ("SGD", 4)])
def test_losses_and_norms_equal_deepspeed(ours: Ranks, optimizer: str, accumulation: int) -> None:
    options = {"stage": 3, "accumulation": accumulation, "optimizer": optimizer, "clip": 0.5}
    with Ranks(2) as deepspeed:  # it divides ranks once per process
        job = "training.sequence_live_jobs:deepspeed_curve"
        theirs = deepspeed.run(job, steps=8, **options)[0]
    mine = ours.run("training.sequence_jobs:divided", kind="causal", steps=8, **options)[0]
    for column in (0, 1):
        expected = [row[column] for row in theirs]
        assert [row[column] for row in mine] == pytest.approx(expected, rel=1e-5)
