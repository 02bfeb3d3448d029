"""torch.autocast in fp16 scales the loss as torch.amp.GradScaler does, like DeepSpeed."""

import pytest
import torch

from dsengine.optimizers.loss_scale import AutocastLossScale
from training.autocast_jobs import FP16
from training.ranks import Ranks

pytestmark = pytest.mark.engine


def test_small_gradients_do_not_vanish(ranks: Ranks) -> None:
    job = "training.autocast_jobs:norms_of_small_losses"
    expected, found = (ranks.run(job, settings=settings)[0] for settings in ({}, FP16))
    assert "Loss scaling is required" in found.pop("refusal")
    assert found.pop("overflow") == (65536.0, 32768.0, True)
    expected["direct"] = found["direct"]  # of updated weights
    assert found["direct"] > 0.1 * found["0"]
    assert found == pytest.approx(expected, rel=2e-2)


def test_scale_follows_grad_scaler() -> None:
    generator = torch.Generator().manual_seed(0)
    overflows = torch.rand(400, generator=generator) < 0.1
    theirs = torch.amp.GradScaler("cpu", growth_interval=5)
    ours = AutocastLossScale(window=5)
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    assert theirs.scale(torch.ones(1)) == ours.scale == torch.amp.GradScaler("cpu").get_scale()
    assert AutocastLossScale().window == torch.amp.GradScaler("cpu").get_growth_interval()
    for overflow in overflows.tolist():
        weight.grad = torch.tensor([float("inf") if overflow else 0.0])
        theirs.step(optimizer)
        theirs.update()
        ours.update(overflow)
        assert ours.scale == theirs.get_scale()
