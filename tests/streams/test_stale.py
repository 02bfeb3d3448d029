"""Weights that change while a unit is gathered are gathered again."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dsengine
from streams.cases import PARAMETER_OFFLOADS, case, sizes
from streams.machine import host_model, simulated
from training import models

pytestmark = pytest.mark.torch


class Optional(nn.Module):
    """Blocks, of which the last one is called on request."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.blocks = nn.ModuleList(models.Block(8) for _ in range(3))

    def forward(self, x: Tensor, *, uses_last: bool = True) -> Tensor:
        for block in self.blocks if uses_last else [*self.blocks][:-1]:
            x = block(x)
        return x.square().mean()


X = torch.arange(16.0).view(2, 8).sin()


def nothing(engine: Any) -> None:
    """Leave no unit gathered."""
    del engine


@torch.no_grad()
def evaluate(engine: Any) -> None:
    engine(X)


@torch.no_grad()
def evaluate_in_part(engine: Any) -> None:
    """Leave a gather that was begun for a unit that is not called."""
    engine(X, uses_last=False)


def forward_only(engine: Any) -> None:
    engine(X)


def load(engine: Any, before: Callable[[Any], None]) -> None:
    before(engine)
    engine.load_state_dict(Optional(seed=1).state_dict())


def train(engine: Any, before: Callable[[Any], None]) -> None:
    engine.backward(engine(X))
    before(engine)
    engine.step()


def loss_after(change: Callable[..., None], before: Callable[[Any], None], **zero: Any) -> float:
    with sizes({}), simulated() as machine:
        model = host_model(machine, Optional())
        engine, *_ = dsengine.initialize(model=model, config=case(3, 1, "fp32", **zero))
        change(engine, before)
        with torch.no_grad():
            loss = engine(X).item()
        engine.destroy()
    return loss


@pytest.mark.parametrize("before", [evaluate, evaluate_in_part, forward_only])
@pytest.mark.parametrize("change", [load, train])
def test_changed_weights_are_gathered_again(
    change: Callable[..., None], before: Callable[[Any], None]
) -> None:
    assert loss_after(change, before) == loss_after(change, nothing)


def test_changed_offloaded_weights_are_gathered_again() -> None:
    both = PARAMETER_OFFLOADS["both"]
    assert loss_after(load, evaluate_in_part, **both) == loss_after(load, nothing, **both)
