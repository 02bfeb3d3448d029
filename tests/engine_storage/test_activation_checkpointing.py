"""Blocks recompute their activations: gradients are equal, and less is saved."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from dsengine.loop import activation_checkpointing as checkpointing
from dsengine.loop.activation_checkpointing import (
    RecomputationSettings,
    checkpoint_blocks,
    every_other_product,
)
from narrowing import not_none

DEFAULTS = checkpointing.unconfigured()


@pytest.fixture(autouse=True)
def unconfigured(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(checkpointing, "_settings", None)
    yield


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 32), nn.Linear(32, 8)
        self.calls = 0

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        self.calls += 1
        return x + scale * nn.functional.dropout(self.down(torch.tanh(self.up(x))), 0.5)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x, scale=0.5)
        return x


def gradients(model: nn.Module, kept: list[Tensor] | None = None) -> list[Tensor]:
    torch.manual_seed(3)
    x = torch.randn(16, 8, requires_grad=True)

    def keep(tensor: Tensor) -> Tensor:
        if kept is not None:
            kept.append(tensor)
        return tensor

    torch.manual_seed(4)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        loss = model(x).square().sum()
    loss.backward()
    return [p.grad for p in model.parameters() if p.grad is not None]


def model() -> Model:
    torch.manual_seed(1)
    return Model()


BLOCKS = [f"layers.{i}" for i in range(4)]


@pytest.mark.parametrize(
    "settings", [DEFAULTS, replace(DEFAULTS, cpu_checkpointing=True, profile=True)]
)
def test_recomputation_keeps_gradients_and_saves_less(settings: RecomputationSettings) -> None:
    plain, recomputing = model(), model()
    checkpoint_blocks(recomputing, settings, BLOCKS)
    kept: list[Tensor] = []
    kept_by_blocks: list[Tensor] = []
    expected = gradients(plain, kept)
    got = gradients(recomputing, kept_by_blocks)
    assert all(torch.equal(a, b) for a, b in zip(expected, got, strict=True))
    assert [layer.calls for layer in recomputing.layers] == [2] * 4
    if not settings.cpu_checkpointing:
        assert sum(t.nbytes for t in kept_by_blocks) < sum(t.nbytes for t in kept) / 2


def test_selective_policy_keeps_every_other_product() -> None:
    plain, selective = Gated(), Gated()
    selective.load_state_dict(plain.state_dict())
    x = torch.randn(2, 32, 16, requires_grad=True)
    plain(x).sum().backward()
    with Products() as forward:
        y = checkpoint(selective, x, use_reentrant=False, context_fn=every_other_product)
    with Products() as backward:
        y.sum().backward()
    for one, other in zip(plain.parameters(), selective.parameters(), strict=True):
        assert torch.equal(not_none(one.grad), not_none(other.grad))
    # Two per product in backward; of q, k, v, o, gate, up and down three are recomputed.
    assert (forward.count, backward.count) == (7, 2 * 7 + 3)


class Gated(nn.Module):
    """A block of a decoder: attention, then a gated MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(16, 16, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(16, 48, bias=False) for _ in range(2))
        self.down = nn.Linear(48, 16, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part(x).view(2, 32, 2, 8).transpose(1, 2) for part in (self.q, self.k, self.v))
        attended = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(attended.transpose(1, 2).reshape(2, 32, 16))
        return x + self.down(nn.functional.silu(self.gate(x)) * self.up(x))


class Products(TorchDispatchMode):
    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func.name() == "aten::mm"
        return func(*args, **(kwargs or {}))


def test_parameter_names_do_not_change() -> None:
    recomputing = model()
    checkpoint_blocks(recomputing, DEFAULTS, BLOCKS)
    assert recomputing.state_dict().keys() == model().state_dict().keys()


def test_nothing_is_recomputed_in_evaluation() -> None:
    recomputing = model()
    checkpoint_blocks(recomputing, DEFAULTS, BLOCKS)
    with torch.no_grad():
        recomputing(torch.zeros(1, 8))
    assert recomputing.layers[0].calls == 1


def test_configure_and_checkpoint_functions() -> None:
    config: dict[str, Any] = {"activation_checkpointing": {"cpu_checkpointing": True}}
    assert not checkpointing.is_configured()
    checkpointing.configure(None, deepspeed_config=config, profile=True)
    assert checkpointing.is_configured()
    block = Block()
    x = torch.randn(4, 8, requires_grad=True)
    checkpointing.checkpoint(block, x, 0.5).sum().backward()
    assert block.calls == 2
    assert x.grad is not None


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ({"contiguous_memory_optimization": True}, "partition_activations"),
        (
            {"contiguous_memory_optimization": True, "partition_activations": True},
            "number_checkpoints",
        ),
        ({"cpu_checkpoint": True}, "unknown keys"),
    ],
)
def test_inconsistent_config_is_refused(block: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        checkpointing.configure(deepspeed_config={"activation_checkpointing": block})
