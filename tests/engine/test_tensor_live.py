"""Tensor parallelism equals DeepSpeed's AutoTP where that is right."""

import pytest

from training.ranks import Ranks

pytestmark = [pytest.mark.engine, pytest.mark.live]


@pytest.mark.parametrize(
    ("kind", "stage"), [("causal", 1), ("causal", 2), ("causal", 3), ("qwen 3", 1)]
)
def test_losses_and_norms_equal_deepspeed(ours: Ranks, kind: str, stage: int) -> None:
    options = {"kind": kind, "stage": stage, "optimizer": "AdamW", "steps": 8}
    with Ranks(2) as deepspeed:  # AutoTP changes its process
        theirs = deepspeed.run("training.tensor_live_jobs:deepspeed_curve", **options)[0]
    mine = ours.run("training.tensor_jobs:divided", **options)[0]
    for column, name in enumerate(("losses", "norms")):
        expected = [row[column] for row in theirs]
        assert [row[column] for row in mine] == pytest.approx(expected, rel=1e-5), name
