"""Adam without bias correction, against its formula."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dsengine.deepspeed.optimizers import DeepSpeedCPUAdam, FusedAdam
from dsengine.optimizers import adam
from dsengine.optimizers.binding import is_elementwise
from dsengine.optimizers.build import build_optimizer

LR, DECAY, EPS, BETAS = 1e-2, 0.1, 1e-8, (0.9, 0.999)
STEPS = 5


def gradients() -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(5, 3, generator=generator) for _ in range(STEPS)]


def expected(start: Tensor, *, decoupled: bool) -> Tensor:
    weight = start.double()
    mean = variance = torch.zeros_like(weight)
    for gradient in (each.double() for each in gradients()):
        if decoupled:
            weight = weight * (1 - LR * DECAY)
        else:
            gradient = gradient + DECAY * weight
        mean = BETAS[0] * mean + (1 - BETAS[0]) * gradient
        variance = BETAS[1] * variance + (1 - BETAS[1]) * gradient**2
        weight = weight - LR * mean / (variance.sqrt() + EPS)
    return weight.float()


def stepped(optimizer: torch.optim.Optimizer, weights: list[nn.Parameter]) -> None:
    for gradient in gradients():
        for weight in weights:
            weight.grad = gradient.clone()
        optimizer.step()


PARAMS = {"lr": LR, "weight_decay": DECAY, "eps": EPS, "betas": BETAS, "bias_correction": False}


@pytest.mark.parametrize("decoupled", [True, False])
@pytest.mark.parametrize("implementation", [{}, {"foreach": True}, {"foreach": False}])
def test_adam_of_config_without_bias_correction(
    implementation: dict[str, Any], decoupled: bool
) -> None:
    start = torch.ones(5, 3)
    weights = [nn.Parameter(start.clone()) for _ in range(2)]
    params = {**PARAMS, **implementation, "adam_w_mode": decoupled}
    optimizer = build_optimizer("Adam", params, [{"params": weights}])
    stepped(optimizer, weights)
    for weight in weights:
        torch.testing.assert_close(weight.detach(), expected(start, decoupled=decoupled))
        assert float(optimizer.state[weight]["step"]) == STEPS
    assert type(optimizer).__name__ == ("AdamW" if decoupled else "Adam")
    assert is_elementwise(type(optimizer))


@pytest.mark.parametrize("kind", [FusedAdam, DeepSpeedCPUAdam])
def test_adam_of_script_without_bias_correction(kind: Any) -> None:
    start = torch.ones(5, 3)
    weight = nn.Parameter(start.clone())
    options = {"lr": LR, "weight_decay": DECAY, "eps": EPS, "betas": BETAS}
    stepped(kind([weight], bias_correction=False, **options), [weight])
    torch.testing.assert_close(weight.detach(), expected(start, decoupled=True))


def test_corrected_adam_is_torchs() -> None:
    weight, other = (nn.Parameter(torch.ones(5, 3)) for _ in range(2))
    stepped(adam.AdamW([weight], lr=LR), [weight])
    stepped(torch.optim.AdamW([other], lr=LR), [other])
    torch.testing.assert_close(weight, other, rtol=0, atol=0)
